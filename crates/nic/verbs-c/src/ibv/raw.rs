//! Raw packet queue pairs (ibv_create_qp(3), ibv_create_qp_ex(3)).

use roxie::raw::{RawQp, RawQpAttr, RxHash};
use roxie::transport::{VerbsError, refuse};

use crate::abi::objects::ibv_qp_init_attr_ex;
use crate::errno::{given, no_argument};
use crate::handle::typed;
use crate::observer::Between;

use super::events::ObjectId;
use super::pd_mr::PdObject;
use super::qp::{self, InitAttr, QpObject};
use super::queue_pair::QueuePair;
use super::wq::TableObject;
use super::wr;

/// Creates a queue pair and sets the capacities that it got, or returns the refusal.
pub(super) fn create(
    pd: Option<&PdObject>,
    init: &mut InitAttr,
    send_ops: Option<u64>,
) -> Result<Box<QpObject>, VerbsError> {
    wr::check_ops(send_ops, wr::RAW_OPS)?;
    let pd = pd.ok_or_else(|| no_argument!("pd"))?;
    let (send_cq, recv_cq, srq) = init.queues();
    if srq.is_some() {
        let srq = init.srq.addr();
        return Err(refuse!(EOPNOTSUPP, "queue pair", "srq"; srq; "raw packet queue pairs take no SRQ"));
    }
    let (send_cq, recv_cq) =
        (send_cq.ok_or_else(|| no_argument!("send_cq"))?, recv_cq.ok_or_else(|| no_argument!("recv_cq"))?);
    let id = ObjectId::new();
    let attr = RawQpAttr {
        send_cq: send_cq.tail.cq.clone(),
        recv_cq: recv_cq.tail.cq.clone(),
        cap: qp::with_free_room(init.cap),
        sq_sig_all: init.sq_sig_all != 0,
        cookie: id.0,
    };
    let cqs = [("send_cq", send_cq.address()), ("recv_cq", recv_cq.address())];
    let raw = RawQp::new(&pd.tail, &attr).between(&[("pd", pd.address()), cqs[0], cqs[1]])?;
    init.set_cap(raw.cap());
    Ok(export(pd, init, raw, id, send_ops))
}

/// Creates an RSS queue pair, or returns the refusal.
pub(super) fn create_rss(
    pd: Option<&PdObject>,
    attr: &ibv_qp_init_attr_ex,
) -> Result<Box<QpObject>, VerbsError> {
    // SAFETY: ibv_create_qp_ex(3): `comp_mask` says that the attributes name a table, and have a key.
    let (table, key): (Option<&TableObject>, Option<&[u8]>) = unsafe {
        let conf = &attr.rx_hash_conf;
        typed((attr.rwq_ind_tbl, (conf.rx_hash_key.cast_const(), usize::from(conf.rx_hash_key_len))))
    };
    given!(Err; pd, table as "rwq_ind_tbl", key as "rx_hash_key");
    let conf = &attr.rx_hash_conf;
    let hash = RxHash::new(conf.rx_hash_function, key, conf.rx_hash_fields_mask)?;
    let id = ObjectId::new();
    let raw = RawQp::new_rss(&pd.tail, &table.tail, hash, id.0);
    let raw = raw.between(&[("pd", pd.address()), ("rwq_ind_tbl", table.address())])?;
    let init = InitAttr::without_queues(attr.qp_context, attr.qp_type);
    Ok(export(pd, &init, raw, id, None))
}

fn export(pd: &PdObject, init: &InitAttr, raw: RawQp, id: ObjectId, send_ops: Option<u64>) -> Box<QpObject> {
    qp::export(pd.context().get(), pd.public(), init, QueuePair::Raw(raw), id, send_ops)
}
