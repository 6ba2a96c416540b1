//! A front for the retrieval server without Python: HTTP/2, protobuf, checks, hashing, admission and the queue.
//!
//! Python answers each batch of plain requests at once; requests and answers are flat arrays. All other calls are
//! forwarded to the Python server, which can answer any call.

mod admission;
mod batch;
mod begun;
mod calls;
mod counts;
mod front;
mod listener;
mod plain;
mod queue;
mod rows;
mod status;
mod tls;
mod upstream;
mod wire;

use pyo3::prelude::*;

#[pymodule]
fn weir_front(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<front::Front>()?;
    module.add_class::<batch::Batch>()?;
    module.add_function(wrap_pyfunction!(rows::look_up, module)?)?;
    module.add_function(wrap_pyfunction!(rows::tower_inputs, module)?)
}
