#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockkeeper_server::fuzz::frame_limits(data));
