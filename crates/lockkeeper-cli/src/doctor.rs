//! `lockkeeper doctor`: the guarantees of an engine, and its unsafe settings.

use std::fmt::Write;

use clap::Args;
use lockkeeper::{Capabilities, Error, Finding};
use serde::Serialize;

use crate::client::{self, Client, Output};
use crate::failure::{Failure, OTHER};

/// Show the guarantees of an engine, and check its configuration for unsafe settings
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
    findings: Vec<ReportedFinding>,
}

#[derive(Serialize)]
struct ReportedFinding {
    code: String,
    what: String,
    advice: String,
}

impl From<Finding> for ReportedFinding {
    fn from(finding: Finding) -> ReportedFinding {
        ReportedFinding { code: finding.code.to_owned(), what: finding.what, advice: finding.advice }
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
        let engine = without_password(&self.client.engine);
        let keeper = match self.client.builder().connect_unfenced(&self.client.engine).await {
            Ok(keeper) => keeper,
            // The engine itself refuses an unsafe or wrong configuration.
            Err(error @ (Error::Unsupported(_) | Error::Invalid(_) | Error::Forbidden(_))) => {
                let refused = ReportedFinding {
                    code: "refused".to_owned(),
                    what: error.to_string(),
                    advice: "correct the URL or the engine's configuration".to_owned(),
                };
                return Ok(Diagnosis { engine, capabilities: None, findings: vec![refused] });
            }
            Err(error) => return Err(error.into()),
        };
        let findings = keeper.examine().await?.into_iter().map(ReportedFinding::from).collect();
        let capabilities = Some(keeper.capabilities());
        let _ = keeper.close().await;
        Ok(Diagnosis { engine, capabilities, findings })
    }
}

/// The URL without a password.
fn without_password(url: &str) -> String {
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
            ("lease clock", can.clock.to_string()),
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
    fn password_is_not_shown() {
        assert_eq!(without_password("redis://me:secret@h:1/0"), "redis://...@h:1/0");
        assert_eq!(without_password("lockkeeper://h:1"), "lockkeeper://h:1");
    }
}
