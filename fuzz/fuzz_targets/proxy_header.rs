#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fencepost_fuzz::demand("proxy_header", data));
