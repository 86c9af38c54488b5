//! A file of observations, for jobs that are too short to watch a lock for a whole lease. Rule C9 of `docs/client.md`.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use leasehold_client::{Client, SavedObservation};
use tempfile::NamedTempFile;

use crate::Failure;
use crate::failure::status;

/// Where observations are kept between two runs.
pub(crate) struct ObservationsFile(PathBuf);

impl ObservationsFile {
    /// Lets `client` go on from what the file has. A file that is not there yet has nothing.
    pub(crate) fn load(path: &Path, client: &Client) -> Result<Self, Failure> {
        match std::fs::read(path) {
            Ok(bytes) => {
                let saved: Vec<SavedObservation> =
                    serde_json::from_slice(&bytes).map_err(|error| damaged(path, &error))?;
                client.load_observations(saved);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::failed(format!("cannot read {}: {error}", path.display()))),
        }
        // If it cannot be written, nothing should be acquired first.
        let file = Self(path.to_owned());
        file.save(client)?;
        Ok(file)
    }

    /// Saves what `client` has seen: the whole file or nothing of it, whenever this process ends.
    pub(crate) fn save(&self, client: &Client) -> Result<(), Failure> {
        self.replace(client).map_err(|error| Failure::failed(format!("cannot write {}: {error}", self.0.display())))
    }

    fn replace(&self, client: &Client) -> io::Result<()> {
        // In the same folder, so that it can be renamed into place.
        let folder = self.0.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = NamedTempFile::new_in(folder)?;
        serde_json::to_writer(&mut file, &client.save_observations())?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(&self.0)?;
        Ok(())
    }
}

fn damaged(path: &Path, error: &dyn Display) -> Failure {
    let message = format!(
        "{} is no file of observations, or damaged: {error}; delete it to watch the lock anew, or name another file",
        path.display()
    );
    Failure::new(status::CORRUPT, "damaged-observations", message)
}
