//! Checks of `lockkeeper doctor` that several engines share.

use std::time::{Duration, SystemTime};

use crate::capabilities::Finding;

/// The largest difference of clocks that is not reported.
const CLOCK_OFF: Duration = Duration::from_secs(5);

/// Compares the clock of a server with ours; some servers report it in whole seconds only.
pub(crate) fn clock_off(server: &str, theirs: SystemTime) -> Option<Finding> {
    let ours = SystemTime::now();
    let apart = theirs.duration_since(ours).or_else(|_| ours.duration_since(theirs)).unwrap_or_default();
    (apart > CLOCK_OFF).then(|| {
        Finding::new(
            "clock-off",
            format!(
                "the clock of {server} differs from ours by {} s: a clock that is set forward ends leases early, and displayed \
                 hold times are wrong by this much",
                apart.as_secs()
            ),
            "synchronize both machines with NTP, slewing instead of stepping the clock",
        )
    })
}

/// Reads the clock of an HTTP server from the `Date` header of its answer; `None` without that header.
#[cfg(feature = "etcd")]
pub(crate) async fn http_clock(host: &str, path: &str) -> Option<SystemTime> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// The size limit of the answer.
    const HEAD_MAX: u64 = 16 * 1024;
    const TIMEOUT: Duration = Duration::from_secs(2);
    let request = async {
        let mut stream = tokio::net::TcpStream::connect(host).await?;
        let head = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(HEAD_MAX).read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(TIMEOUT, request).await.ok()?.ok()?;
    let date = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| value.trim().to_owned())
    });
    httpdate::parse_http_date(&date?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_difference_is_reported_in_both_directions() {
        let now = SystemTime::now();
        assert_eq!(clock_off("it", now), None);
        assert_eq!(clock_off("it", now + Duration::from_secs(3)), None);
        for off in [now + Duration::from_secs(60), now - Duration::from_secs(60)] {
            let finding = clock_off("it", off).unwrap();
            assert_eq!(finding.code, "clock-off");
            assert!(finding.what.contains("60 s") || finding.what.contains("59 s"), "{}", finding.what);
        }
    }

    #[cfg(feature = "etcd")]
    #[tokio::test]
    async fn clock_is_read_from_the_date_header() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            // Closing a stream with unread data would reset it and lose the answer.
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut request).await.unwrap();
            }
            let answer = "HTTP/1.0 200 OK\r\ndate: Tue, 01 Jan 2019 00:00:00 GMT\r\n\r\n{}";
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let clock = http_clock(&address, "/version").await.unwrap();
        assert_eq!(clock.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(), 1_546_300_800);
        assert!(clock_off("etcd", clock).is_some());
        assert_eq!(http_clock("127.0.0.1:1", "/version").await, None, "there is no server");
    }
}
