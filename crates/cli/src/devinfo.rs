//! `roxie devinfo`: device, port, GIDs and limits.

use clap::Args as ClapArgs;
use roxie::port::{LocalPath, Outlook, PortChoice};
use roxie::verbs::{Context, Device, DeviceConfig};
use serde_json::{Value, json};

use crate::failure::{During, Failure, Outcome};
use crate::nic_args::{DeviceArgs, PortArgs, TrafficArgs};
use crate::terminal::{self, Terminal};

/// Show each device, its port, GIDs and limits
///
/// Like ibv_devinfo, without needing it installed; shows also whether packets go by UDP or AF_XDP sockets.
/// Opens no port.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/devinfo.txt"))]
pub(crate) struct DevinfoArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) port: PortArgs,
    /// Show the limits too
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Print one JSON object for each device, limits included
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints what each device is.
pub(crate) fn print(args: &DevinfoArgs) -> Outcome {
    let choice = args.port.choice()?;
    TrafficArgs::default().words(&args.device)?;
    let terminal = Terminal::stdout();
    for (number, context) in open(&args.device, Some(choice))?.iter().enumerate() {
        let outlook = Outlook::new(choice, &context.device().gids()).during("the interface")?;
        let value = describe(context, &outlook, choice.local);
        if args.json {
            terminal::json_lines(&value)?;
            continue;
        }
        if number > 0 {
            terminal.line("");
        }
        show(terminal, context, &value, args.verbose);
    }
    Ok(())
}

fn show(terminal: Terminal, context: &Context, value: &Value, is_verbose: bool) {
    terminal.heading(context.device().name());
    for section in ["device", "port"] {
        rows(terminal, &value[section]);
    }
    for gid in value["gids"].as_array().into_iter().flatten() {
        let above = match &gid["netdev"] {
            netdev if *netdev == value["device"]["netdev"] => String::new(),
            netdev => format!("  {}", text(netdev)),
        };
        let (index, bytes, ip) = (&gid["index"], text(&gid["gid"]), text(&gid["ip"]));
        terminal.line(&format!("  GID {index:<3}            {bytes}  {ip}{above}"));
    }
    for ip in value["beyond"].as_array().into_iter().flatten() {
        terminal.line(&format!("  no row             {}", text(ip)));
    }
    if is_verbose {
        rows(terminal, &value["limits"]);
    }
}

/// The devices that `args` and the environment choose, at least one; without `port`, with the port that the
/// environment names.
pub(crate) fn open(args: &DeviceArgs, port: Option<PortChoice>) -> Outcome<Vec<Context>> {
    args.check()?;
    let open = |config: DeviceConfig| {
        let context = Device::open(&DeviceConfig { port, ..config }).and_then(|device| device.context());
        context.map_err(|error| Failure::of_device("opening the device", &error))
    };
    args.configs()?.into_iter().map(open).collect()
}

fn describe(context: &Context, outlook: &Outlook, local: LocalPath) -> Value {
    let (device, port) = (context.query_device(), context.query_port());
    let netdev = context.device().gids();
    let gids: Vec<Value> = context
        .gids()
        .iter()
        .map(|entry| {
            json!({
                "index": entry.index,
                "gid": hex(&entry.gid.0),
                "ip": entry.gid.ip().to_string(),
                "type": "RoCE v2",
                "netdev": netdev.netdev_of(entry.ifindex),
            })
        })
        .collect();
    json!({
        "device": {
            "name": context.device().name(),
            "netdev": netdev.netdev,
            "node_guid": format!("{:016x}", device.node_guid),
            "fw_ver": device.fw_ver,
        },
        "port": {
            "state": if port.active { "active" } else { "down" },
            "packets_by": outlook.to_string(),
            "within_host_by": local.to_string(),
            "netdev_mtu": netdev.mtu,
            "max_mtu": port.max_mtu.bytes(),
            "active_mtu": port.active_mtu.bytes(),
            "max_msg_sz": port.max_msg_sz,
            "gid_tbl_len": port.gid_tbl_len,
        },
        "gids": gids,
        "beyond": netdev.beyond.iter().map(|row| row.gid.ip().to_string()).collect::<Vec<_>>(),
        "limits": {
            "max_qp": device.max_qp,
            "max_qp_wr": device.max_qp_wr,
            "max_sge": device.max_sge,
            "max_inline_data": device.max_inline_data,
            "max_qp_rd_atom": device.max_qp_rd_atom,
            "max_cq": device.max_cq,
            "max_cqe": device.max_cqe,
            "max_mr": device.max_mr,
            "max_mr_size": device.max_mr_size,
            "max_pd": device.max_pd,
            "max_ah": device.max_ah,
            "max_srq": device.max_srq,
            "max_srq_wr": device.max_srq_wr,
            "max_srq_sge": device.max_srq_sge,
            "local_ca_ack_delay": device.local_ca_ack_delay,
        },
    })
}

fn rows(terminal: Terminal, section: &Value) {
    for (key, value) in section.as_object().into_iter().flatten() {
        terminal.line(&format!("  {key:<18} {}", text(value)));
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Eight groups of four digits, as `ibv_devinfo -v` prints GIDs.
fn hex(bytes: &[u8; 16]) -> String {
    let groups: Vec<String> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}
