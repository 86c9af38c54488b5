//! A file of observations, for jobs that are too short to watch a lock for a whole lease. Rule C9 of `docs/client.md`.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use leasehold_client::{Client, SavedObservation};
use tempfile::NamedTempFile;

use crate::Failure;
use crate::failure::status;

/// The file that keeps observations between two runs.
pub(crate) struct ObservationsFile(PathBuf);

impl ObservationsFile {
    /// Loads the file's observations into `client`. A missing file has none.
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
        // Nothing is acquired if the file cannot be written.
        let file = Self(path.to_owned());
        file.save(client)?;
        Ok(file)
    }

    /// Saves the observations of `client`. The file is complete at any time, even if this process is killed.
    pub(crate) fn save(&self, client: &Client) -> Result<(), Failure> {
        self.replace(client).map_err(|error| Failure::failed(format!("cannot write {}: {error}", self.0.display())))
    }

    fn replace(&self, client: &Client) -> io::Result<()> {
        // The temporary file is in the same folder, so that it can be renamed into place.
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
