//! Weights from and to other processes, over a communicator. Owns joining one and making snapshots of what it sends; must not know
//! who its processes are.

use super::passes::{Brought, Opened, Sampled, Stored, failed};
use crate::{COMMUNICATOR_ID_BYTES, Communicator, ModelConfig, ModelError, Receiver, Seat, Snapshot};
use prl_kernels::cuda::{self, decoder};
use std::sync::Arc;

pub(super) fn communicator_id() -> Result<[u8; COMMUNICATOR_ID_BYTES], ModelError> {
    cuda::communicator_id().map_err(failed)
}

impl Opened {
    pub(super) fn join(&self, seat: Seat) -> Result<Communicator, ModelError> {
        let _alone = decoder::setting_up();
        let inner = cuda::Communicator::join(self.sampling.clone(), seat).map_err(failed)?;
        Ok(Communicator { inner })
    }
}

/// For the weights that follow a snapshot's.
struct Awaiting<T: Stored> {
    receiver: decoder::Receiver<T>,
    config: Arc<ModelConfig>,
    adapters: Arc<Brought<T>>,
}

impl<T: Stored> Sampled<T> {
    pub(super) fn awaiting(&self) -> Arc<dyn Receiver> {
        let (receiver, config, adapters) = (self.sampling.receiver(), self.config.clone(), self.adapters.clone());
        Arc::new(Awaiting { receiver, config, adapters })
    }
}

impl<T: Stored> Receiver for Awaiting<T> {
    fn receive(&self, from: &Communicator, number: u64) -> Result<Arc<dyn Snapshot>, ModelError> {
        let _alone = decoder::setting_up();
        let sampling = self.receiver.receive(&from.inner, number).map_err(failed)?;
        Ok(Arc::new(Sampled { config: self.config.clone(), sampling, adapters: self.adapters.clone() }))
    }
}
