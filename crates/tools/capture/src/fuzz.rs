//! What a hostile command can send to its capture, for the fuzz targets: bytes in, a panic if a promise is
//! broken.

/// The engines of a command send these messages, and write these records into the memory of their taps.
pub fn command(bytes: &[u8]) {
    crate::live::check_command(bytes);
}
