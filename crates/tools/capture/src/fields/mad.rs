//! Dissects management datagrams: the common header, and the attributes of classes that are used over
//! Ethernet.

use wire::{CmMessage, MAD_LEN, MadHeader};

use super::{Layer, Value, class, cm};

pub(super) fn layers<'a>(mad: &'a [u8; MAD_LEN], layers: &mut Vec<Layer<'a>>) {
    let Some(header) = mad.first_chunk().map(MadHeader::parse) else { return };
    layers.push(common(&header));
    let data = &mad[MadHeader::LEN..];
    layers.push(match CmMessage::parse(mad) {
        Ok(message) => cm::layer(&message, mad),
        Err(_) => other(&header, data),
    });
}

fn common(header: &MadHeader) -> Layer<'static> {
    Layer::new(format!("MAD: {}", class::name(header.mgmt_class)))
        .hex("infiniband.mad.baseversion", "Base Version", 2, header.base_version)
        .hex("infiniband.mad.mgmtclass", "Management Class", 2, header.mgmt_class)
        .means(class::name(header.mgmt_class))
        .hex("infiniband.mad.classversion", "Class Version", 2, header.class_version)
        .hex("infiniband.mad.method", "Method", 2, header.method)
        .means(method(header.method))
        .hex("infiniband.mad.status", "Status", 4, header.status)
        .hex("infiniband.mad.classspecific", "Class Specific", 4, header.class_specific)
        .hex("infiniband.mad.transactionid", "Transaction ID", 16, header.tid)
        .hex("infiniband.mad.attributeid", "Attribute ID", 4, header.attribute_id)
        .hex("infiniband.mad.attributemodifier", "Attribute Modifier", 8, header.attribute_modifier)
}

/// The layer of a datagram of another class than connection management.
fn other<'a>(header: &MadHeader, data: &'a [u8]) -> Layer<'a> {
    let Some(attribute) = class::attribute(header) else {
        return Layer::new("MAD data").bytes("infiniband.mad.data", "Data", data);
    };
    let mut layer = Layer::new(attribute.title);
    let body = data.get(class::reserved(header.mgmt_class)..).unwrap_or_default();
    for row in attribute.rows {
        let value = match row.width {
            128 => Value::Ip(row.gid(body).ip()),
            _ if row.decimal => Value::Number(row.value(body)),
            width => Value::Hex(row.value(body), width.div_ceil(4)),
        };
        layer = layer.add(row.name, row.label, value);
    }
    layer
}

fn method(method: u8) -> &'static str {
    match method {
        0x01 => "Get",
        0x02 => "Set",
        0x03 => "Send",
        0x05 => "Trap",
        0x06 => "Report",
        0x07 => "TrapRepress",
        0x12 => "GetTable",
        0x15 => "Delete",
        0x81 => "GetResp",
        0x86 => "ReportResp",
        0x92 => "GetTableResp",
        0x95 => "DeleteResp",
        _ => "unknown",
    }
}
