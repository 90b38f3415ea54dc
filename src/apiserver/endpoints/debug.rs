//! `/debug/`: what a person looks at when something is wrong. There is no Go runtime to profile here; the page says
//! what there is instead.

use http::{HeaderValue, StatusCode, header};

use crate::request::{Answer, Body};
use crate::respond::{Failure, page_not_found, plain, typed};
use crate::server::Server;

/// Answers a path below `/debug`.
///
/// # Errors
/// 404 for what there is not, or when profiling is off.
pub fn serve(server: &Server, path: &str, rest: &[&str]) -> Result<Answer, Failure> {
    if !server.options.profiling {
        return Err(page_not_found());
    }
    match rest {
        ["pprof"] if !path.ends_with('/') => Ok(moved("/debug/pprof/")),
        ["pprof"] => Ok(typed("text/html; charset=utf-8", page())),
        ["pprof", "cmdline"] => Ok(plain(StatusCode::OK, std::env::args().collect::<Vec<_>>().join("\0"))),
        _ => Err(page_not_found()),
    }
}

fn moved(to: &'static str) -> Answer {
    let mut answer = Answer::new(Body::from(format!("<a href=\"{to}\">Found</a>.\n\n").into_bytes()));
    *answer.status_mut() = StatusCode::FOUND;
    answer.headers_mut().insert(header::LOCATION, HeaderValue::from_static(to));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    answer
}

fn page() -> String {
    let (cpu, resident) = (base::metrics::cpu_seconds(), base::metrics::resident_bytes());
    format!(
        "<html><head><title>/debug/pprof/</title></head><body>\n<h1>/debug/pprof/</h1>\n\
         <p>CPU: {cpu:.2} s, resident: {resident} bytes</p>\n\
         <ul><li><a href=\"cmdline\">cmdline</a></li></ul>\n\
         <p>Profiles of this process are taken from outside, with perf.</p>\n</body></html>\n"
    )
}
