//! `lockkeeper doctor`: what an engine can promise, and which settings of it are unsafe.

use std::fmt::Write;

use clap::Args;
use lockkeeper::{Capabilities, Error, Finding};
use serde::Serialize;

use crate::client::{self, Client, Output};
use crate::failure::{Failure, OTHER};

/// Show what an engine can promise, and check its set-up for unsafe settings
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper doctor
  lockkeeper doctor --engine redis://10.0.0.1:6379
  lockkeeper doctor --engine postgres://app@db/app --output json | jq .findings

Exit codes: 0 no findings, 1 something is unsafe (see the list), 69 no engine answers.")]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Serialize)]
struct Diagnosis {
    engine: String,
    /// None if the engine refused the connection.
    capabilities: Option<&'static Capabilities>,
    findings: Vec<Told>,
}

#[derive(Serialize)]
struct Told {
    code: String,
    what: String,
    advice: String,
}

impl From<Finding> for Told {
    fn from(finding: Finding) -> Told {
        Told { code: finding.code.to_owned(), what: finding.what, advice: finding.advice }
    }
}

impl Doctor {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let diagnosis = client::block_on(self.diagnose())?;
        match self.client.output {
            Output::Json => client::print_json(&diagnosis)?,
            Output::Table => client::print(&text(&diagnosis))?,
        }
        Ok(if diagnosis.findings.is_empty() { 0 } else { OTHER })
    }

    async fn diagnose(&self) -> Result<Diagnosis, Failure> {
        let engine = shown(&self.client.engine);
        let keeper = match self.client.builder().connect_unfenced(&self.client.engine).await {
            Ok(keeper) => keeper,
            // Unsafe or wrong enough that the engine itself refuses.
            Err(error @ (Error::Unsupported(_) | Error::Invalid(_) | Error::Forbidden(_))) => {
                let refused = Told {
                    code: "refused".to_owned(),
                    what: error.to_string(),
                    advice: "change the URL or the set-up accordingly".to_owned(),
                };
                return Ok(Diagnosis { engine, capabilities: None, findings: vec![refused] });
            }
            Err(error) => return Err(error.into()),
        };
        let findings = keeper.examine().await?.into_iter().map(Told::from).collect();
        let capabilities = Some(keeper.capabilities());
        let _ = keeper.close().await;
        Ok(Diagnosis { engine, capabilities, findings })
    }
}

/// The URL without a password.
fn shown(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}...{}", &url[..scheme + 3], &url[at..]),
        _ => url.to_owned(),
    }
}

fn text(diagnosis: &Diagnosis) -> String {
    let mut text = format!("{}\n\n", diagnosis.engine);
    if let Some(can) = diagnosis.capabilities {
        let yes = |can: bool| if can { "yes" } else { "no" };
        let token = match can.token_source {
            "" => can.token.to_string(),
            source => format!("{}: {source}", can.token),
        };
        for (name, value) in [
            ("engine", can.engine.to_owned()),
            ("class", can.class.to_string()),
            ("token", token),
            ("clock", format!("{} (ends a lease)", can.clock)),
            ("fairness", can.fairness.to_string()),
            ("loss detection", can.loss.to_string()),
            ("shared", yes(can.shared).to_owned()),
            ("counted", yes(can.counted).to_owned()),
            ("several at once", yes(can.several).to_owned()),
            ("lock-delay", yes(can.lock_delay).to_owned()),
        ] {
            let _ = writeln!(text, "{:<16} {value}", format!("{name}:"));
        }
        text.push('\n');
    }
    if diagnosis.findings.is_empty() {
        text.push_str("no unsafe settings found\n");
    }
    for finding in &diagnosis.findings {
        let _ = writeln!(text, "{}: {}\n  advice: {}", finding.code, finding.what, finding.advice);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(shown("redis://me:secret@h:1/0"), "redis://...@h:1/0");
        assert_eq!(shown("lockkeeper://h:1"), "lockkeeper://h:1");
    }
}
