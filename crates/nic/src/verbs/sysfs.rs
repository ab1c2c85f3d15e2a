//! Contents of the sysfs files that the kernel would show for the device (Linux
//! `Documentation/ABI/stable/sysfs-class-infiniband`).

use super::Device;

impl Device {
    /// Returns the content of the file at `path` below /sys/class/infiniband/NAME, without the newline;
    /// `None` for a file that is not provided.
    #[must_use]
    pub fn sysfs_file(&self, path: &str) -> Option<String> {
        if let Some(path) = path.strip_prefix("ports/1/") {
            return self.port_file(path);
        }
        Some(match path {
            "board_id" => "roxie".to_owned(),
            "hca_type" => "roxie".to_owned(),
            "fw_ver" => env!("CARGO_PKG_VERSION").to_owned(),
            "node_type" => "1: CA".to_owned(),
            "node_guid" | "sys_image_guid" => groups(&self.gids().node_guid),
            "node_desc" => self.name().to_owned(),
            _ => return None,
        })
    }

    fn port_file(&self, path: &str) -> Option<String> {
        if let Some(wanted) = path.strip_prefix("gids/") {
            let wanted: u8 = wanted.parse().ok()?;
            return self.gids().rows().find(|(index, _)| *index == wanted).map(|(_, row)| groups(&row.gid.0));
        }
        if path.starts_with("gid_attrs/types/") {
            return Some("RoCE v2".to_owned());
        }
        Some(match path {
            "link_layer" => "Ethernet".to_owned(),
            "pkeys/0" => "0xffff".to_owned(),
            "lid" => "0x0".to_owned(),
            _ => return None,
        })
    }
}

/// Formats bytes as groups of four hexadecimal digits.
fn groups(bytes: &[u8]) -> String {
    let groups: Vec<String> =
        bytes.chunks_exact(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}
