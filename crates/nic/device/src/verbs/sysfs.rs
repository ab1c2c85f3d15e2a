//! Contents of the sysfs files that the kernel would show for the device (Linux
//! `Documentation/ABI/stable/sysfs-class-infiniband`).

use wire::Gid;

use super::Device;
use crate::gid::GID_TBL_LEN;

/// The files that every device has, except those of its GIDs, and `state` and `phys_state` of the port.
const FILES: [&str; 16] = [
    "board_id",
    "fw_ver",
    "hca_type",
    "hw_rev",
    "node_desc",
    "node_guid",
    "node_type",
    "sys_image_guid",
    "ports/1/cap_mask",
    "ports/1/lid",
    "ports/1/lid_mask_count",
    "ports/1/link_layer",
    "ports/1/pkeys/0",
    "ports/1/rate",
    "ports/1/sm_lid",
    "ports/1/sm_sl",
];

impl Device {
    /// Returns the paths of the files that [`sysfs_file`](Self::sysfs_file) provides now. Of the GID table
    /// these are the rows with an address. The others have the same content, zeroes, and no attributes.
    #[must_use]
    pub fn sysfs_files(&self) -> Vec<String> {
        let rows = self.gids();
        let of_row = |index| {
            ["gids", "gid_attrs/types", "gid_attrs/ndevs"].map(|dir| format!("ports/1/{dir}/{index}"))
        };
        FILES.map(str::to_owned).into_iter().chain(rows.rows().flat_map(|(index, _)| of_row(index))).collect()
    }

    /// Returns the content of the file at `path` below /sys/class/infiniband/NAME, without the newline;
    /// `None` for a file that is not provided.
    #[must_use]
    pub fn sysfs_file(&self, path: &str) -> Option<String> {
        if let Some(path) = path.strip_prefix("ports/1/") {
            return self.port_file(path);
        }
        Some(match path {
            "board_id" | "hca_type" => "roxie".to_owned(),
            "fw_ver" => env!("CARGO_PKG_VERSION").to_owned(),
            "hw_rev" => "0".to_owned(),
            "node_type" => "1: CA".to_owned(),
            "node_guid" | "sys_image_guid" => groups(&self.gids().node_guid),
            "node_desc" => self.name().to_owned(),
            _ => return None,
        })
    }

    fn port_file(&self, path: &str) -> Option<String> {
        if let Some((dir, index)) = path.rsplit_once('/').filter(|(dir, _)| dir.starts_with("gid")) {
            let (gids, wanted): (_, u8) = (self.gids(), index.parse().ok()?);
            let row = gids.rows().find(|(index, _)| *index == wanted).map(|(_, row)| row);
            if dir == "gids" && row.is_none() && usize::from(wanted) < GID_TBL_LEN {
                return Some(groups(&Gid::ZERO.0));
            }
            let row = row?;
            return match dir {
                "gids" => Some(groups(&row.gid.0)),
                "gid_attrs/types" => Some("RoCE v2".to_owned()),
                "gid_attrs/ndevs" => gids.netdev_of(row.ifindex),
                _ => None,
            };
        }
        Some(match path {
            // IBV_PORT_CM_SUP and IBV_PORT_IP_BASED_GIDS.
            "cap_mask" => "0x04010000".to_owned(),
            "lid" | "sm_lid" => "0x0".to_owned(),
            "lid_mask_count" | "sm_sl" => "0".to_owned(),
            "link_layer" => "Ethernet".to_owned(),
            "pkeys/0" => "0xffff".to_owned(),
            "rate" => "100 Gb/sec (4X EDR)".to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::DeviceConfig;

    #[test]
    fn every_file_has_a_content_and_empty_rows_are_zero() {
        let config = DeviceConfig { netdev: Some("lo".to_owned()), ..DeviceConfig::default() };
        let device = Device::open(&config).expect("lo has an address");
        let files = device.sysfs_files();
        assert!(files.iter().all(|path| device.sysfs_file(path).is_some()));
        let content = |path| device.sysfs_file(path);
        assert_eq!(content("ports/1/gids/0").as_deref(), Some("0000:0000:0000:0000:0000:ffff:7f00:0001"));
        assert_eq!(content("ports/1/gid_attrs/ndevs/0").as_deref(), Some("lo"));
        assert_eq!(content("ports/1/pkeys/0").as_deref(), Some("0xffff"));
        assert_eq!(content("ports/1/gids/253"), Some(["0000"; 8].join(":")));
        assert_eq!([content("ports/1/gids/254"), content("ports/1/gid_attrs/types/200")], [None, None]);
    }
}
