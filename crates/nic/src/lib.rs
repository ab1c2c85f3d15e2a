//! A RoCEv2 RDMA NIC in user space.
