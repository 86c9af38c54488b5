//! The folder of the states: for each a file, one for the version before it, and one for its fence.

use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use leasehold_terraform::{Change, Name, Store, admit};
use leasehold_wire::{Problem, ProblemType};
use tempfile::NamedTempFile;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;

/// The beginning of the names of files that are being written. No state begins with a dot.
const UNFINISHED: &str = ".leasehold-";
/// The number of names in a warning.
const SHOWN: usize = 10;
/// The number of states that can be changed at the same time.
const TURNS: usize = 64;

/// The reason why the folder of the states cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StatesError {
    /// The folder cannot be made or opened.
    #[error("cannot use {0} for Terraform's states: {1}")]
    Folder(PathBuf, #[source] io::Error),
    /// Another process writes states there.
    #[error("another process serves the Terraform states in {0}; stop it, or name another folder")]
    InUse(PathBuf),
}

/// A folder of states. One process at a time uses it.
#[derive(Debug)]
pub struct States {
    folder: PathBuf,
    /// Locked for as long as the process lives.
    in_use: File,
    /// The states that the locks told of at the start, and the folder did not.
    unknown: HashSet<Name>,
}

impl States {
    /// Opens the folder, and makes it where it is missing. Nobody but its owner can read it then. The folder around it
    /// must be there: a mistyped path makes no new place for states.
    ///
    /// # Errors
    /// The folder cannot be used, or another process uses it.
    pub fn open(folder: &Path) -> Result<Self, StatesError> {
        let failed = |error| StatesError::Folder(folder.to_owned(), error);
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let missing = "the folder around it is missing; make that first, or correct the path";
                return Err(failed(io::Error::new(ErrorKind::NotFound, missing)));
            }
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        if is_open_to_others(folder).map_err(failed)? {
            tracing::warn!(folder = %folder.display(), "other users of this machine can enter the folder of Terraform's states");
        }
        // The folder itself: each path to it shares this lock.
        let in_use = File::open(folder).map_err(failed)?;
        match in_use.try_lock() {
            Ok(()) => {
                remove_unfinished(folder).map_err(failed)?;
                Ok(Self { folder: folder.to_owned(), in_use, unknown: HashSet::new() })
            }
            Err(TryLockError::WouldBlock) => Err(StatesError::InUse(folder.to_owned())),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// The number of states.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn count(&self) -> io::Result<usize> {
        let mut count = 0;
        for file in fs::read_dir(&self.folder)? {
            count += usize::from(file?.path().extension().is_some_and(|extension| extension == "tfstate"));
        }
        Ok(count)
    }

    /// Compares the folder with the names that the locks tell of. Each lock of a state leaves a fence. Where there is
    /// none, the folder is another one than before: to answer that there is no such state would have Terraform create
    /// all of it once more.
    pub(crate) fn compare(&mut self, known: impl Iterator<Item = Name>) {
        self.unknown = known.filter(|name| !self.path(name, "fence").exists()).collect();
        let names: Vec<_> = self.unknown.iter().map(Name::as_str).take(SHOWN).collect();
        if !names.is_empty() {
            tracing::warn!(
                folder = %self.folder.display(), count = self.unknown.len(), ?names,
                "the table has locks of Terraform's states that the folder knows nothing of, and refuses these: is this the right \
                 folder? A state that is new begins with a file NAME.fence of the text `0 NAME`"
            );
        }
    }

    /// # Errors
    /// `misconfigured`: the state belongs into another folder.
    fn expect(&self, name: &Name) -> Result<(), Problem> {
        if !self.unknown.contains(name) || self.path(name, "fence").exists() {
            return Ok(());
        }
        let name = name.as_str();
        let detail = format!(
            "The table of the locks knows the state {name}, and the folder of the states does not. Serve the folder that has it. If it \
             never was, write the text `0 {name}` into the file {name}.fence there."
        );
        tracing::error!(state = name, "a state is in another folder");
        Err(Problem::new(ProblemType::Misconfigured, detail))
    }

    /// The state, if there is one.
    fn read(&self, name: &Name) -> io::Result<Option<Vec<u8>>> {
        let state = if_exists(fs::read(self.path(name, "tfstate")))?;
        // A folder that is gone has no states to be missing.
        if state.is_none() {
            self.check_place()?;
        }
        Ok(state)
    }

    /// Checks that the folder is there, and takes a file.
    fn check(&self) -> io::Result<()> {
        self.check_place()?;
        self.written(b"health\n").map(drop)
    }

    /// # Errors
    /// The folder is gone, or is another one.
    fn check_place(&self) -> io::Result<()> {
        let (now, opened) = (fs::metadata(&self.folder)?, self.in_use.metadata()?);
        if (now.dev(), now.ino()) == (opened.dev(), opened.ino()) {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::NotFound, format!("{} was replaced", self.folder.display())))
    }

    /// The newest fencing token under which somebody could write the state: 0 if there was none.
    fn fence(&self, name: &Name) -> io::Result<u64> {
        let path = self.path(name, "fence");
        let Some(text) = if_exists(fs::read_to_string(&path))? else { return Ok(0) };
        let damaged = |what: &str| io::Error::new(ErrorKind::InvalidData, format!("{} {what}", path.display()));
        let (token, owner) = text.trim_end().split_once(' ').ok_or_else(|| damaged("holds no fencing token"))?;
        // Some file systems take two names for one that differ in capitals only. Such states would share a file under
        // two locks.
        if owner != name.as_str() {
            return Err(damaged(&format!("belongs to the state {owner}, and not to {}", name.as_str())));
        }
        token.parse().map_err(|_| damaged("holds no fencing token"))
    }

    /// Sets the fence. It is on disk when this returns.
    fn set_fence(&self, name: &Name, token: u64) -> io::Result<()> {
        let file = self.written(format!("{token} {}\n", name.as_str()).as_bytes())?;
        self.put(file, &self.path(name, "fence"))
    }

    /// Replaces the state, and keeps the version before. It is on disk when this returns.
    fn write(&self, name: &Name, state: &[u8]) -> io::Result<()> {
        if self.read(name)?.as_deref() == Some(state) {
            return Ok(()); // a repeat: the version before stays
        }
        let file = self.written(state)?;
        self.keep(name)?;
        self.put(file, &self.path(name, "tfstate"))
    }

    /// Removes the state, if there is one, and keeps it as the version before.
    fn remove(&self, name: &Name) -> io::Result<()> {
        let (state, backup) = (self.path(name, "tfstate"), self.path(name, "tfstate.backup"));
        if_exists(fs::rename(state, backup))?;
        File::open(&self.folder)?.sync_all()
    }

    /// Keeps the state, if there is one, as the version before. Whoever reads meanwhile sees the state.
    fn keep(&self, name: &Name) -> io::Result<()> {
        let (state, backup) = (self.path(name, "tfstate"), self.path(name, "tfstate.backup"));
        let beside = self.folder.join(format!("{UNFINISHED}{}", name.as_str()));
        if_exists(fs::remove_file(&beside))?;
        match if_exists(fs::hard_link(state, &beside))? {
            Some(()) => fs::rename(beside, backup),
            None => Ok(()),
        }
    }

    /// A new file with this content, which only its owner can read.
    fn written(&self, content: &[u8]) -> io::Result<NamedTempFile> {
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.folder)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        Ok(file)
    }

    /// Puts a file in its place. Whoever reads meanwhile sees the old content or the new one.
    fn put(&self, file: NamedTempFile, path: &Path) -> io::Result<()> {
        file.persist(path)?;
        File::open(&self.folder)?.sync_all()
    }

    fn path(&self, name: &Name, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", name.as_str()))
    }
}

/// The folder as a store of the backend: a change has the state's turn to itself.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    states: Arc<States>,
    turns: Arc<[Arc<Mutex<()>>; TURNS]>,
}

impl Folder {
    pub(super) fn new(states: Arc<States>) -> Self {
        Self { states, turns: Arc::new(std::array::from_fn(|_| Arc::default())) }
    }

    /// Checks that a state could be written.
    pub(super) async fn check(&self) -> Result<(), Problem> {
        self.on_disk(|states| states.check().map_err(|error| failing(&error))).await
    }

    /// Carries out this change in the state's turn, unless the fence is above the token.
    async fn change_by(
        &self,
        name: &Name,
        token: u64,
        change: impl FnOnce(&States, &Name) -> io::Result<()> + Send + 'static,
    ) -> Result<(), Problem> {
        let turn = self.turn(name).await;
        let name = name.clone();
        self.on_disk(move |states| {
            // A client that hangs up ends the request, but not this: the turn ends with the change.
            let _turn = turn;
            states.expect(&name)?;
            // A fence in another folder would hold nobody back.
            states.check_place().map_err(|error| failing(&error))?;
            let fence = states.fence(&name).map_err(|error| failing(&error))?;
            if admit(token, fence)? {
                states.set_fence(&name, token).map_err(|error| failing(&error))?;
            }
            change(states, &name).map_err(|error| failing(&error))
        })
        .await
    }

    /// Works with files on a thread of its own.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&States) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let gone = |error| Err(Problem::new(ProblemType::Unavailable, format!("The folder was not reached: {error}.")));
        let states = Arc::clone(&self.states);
        spawn_blocking(move || work(&states)).await.unwrap_or_else(gone)
    }

    /// Waits for the turn to change a state.
    async fn turn(&self, name: &Name) -> OwnedMutexGuard<()> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let place = hasher.finish() % self.turns.len() as u64;
        Arc::clone(&self.turns[usize::try_from(place).unwrap_or(0)]).lock_owned().await
    }
}

impl Store for Folder {
    async fn read(&self, name: &Name) -> Result<Option<Vec<u8>>, Problem> {
        let name = name.clone();
        let read = move |states: &States| {
            states.expect(&name)?;
            states.read(&name).map_err(|error| failing(&error))
        };
        self.on_disk(read).await
    }

    async fn change(&self, name: &Name, token: u64, change: Change) -> Result<(), Problem> {
        let change = move |states: &States, name: &Name| match change {
            Change::Raise => Ok(()),
            Change::Write(state) => states.write(name, &state),
            Change::Remove => states.remove(name),
        };
        self.change_by(name, token, change).await
    }
}

fn failing(error: &io::Error) -> Problem {
    tracing::error!(%error, "the folder of Terraform's states fails");
    Problem::new(ProblemType::Unavailable, "The folder of the states fails. The log of the service says why.")
}

/// Whether somebody else than the owner may look at the folder's files or go into it.
fn is_open_to_others(folder: &Path) -> io::Result<bool> {
    Ok(fs::metadata(folder)?.mode() & 0o077 != 0)
}

/// Removes what a process that was killed left.
fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for file in fs::read_dir(folder)? {
        let file = file?;
        if file.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn next_holder_waits_for_a_write_whose_client_hung_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let states = Folder::new(Arc::new(States::open(folder.path()).expect("free")));
        let name = Name::parse("network").expect("plain");
        let ((writing, written), (go, going)) = (channel(), channel());
        let write = {
            let (states, name) = (states.clone(), name.clone());
            tokio::spawn(async move {
                let slow = move |states: &States, name: &Name| {
                    writing.send(()).expect("the test listens");
                    going.recv().expect("the test goes on");
                    states.write(name, b"late")
                };
                states.change_by(&name, 1, slow).await
            })
        };
        spawn_blocking(move || written.recv()).await.expect("a thread").expect("it writes");
        write.abort();
        write.await.expect_err("its client hung up");
        let mut next = Box::pin(states.change(&name, 2, Change::Raise));
        timeout(Duration::from_millis(200), &mut next).await.expect_err("a write of the first is on its way");
        go.send(()).expect("the write waits");
        next.await.expect("granted");
        assert_eq!(states.read(&name).await.expect("read").as_deref(), Some(&b"late"[..]));
        let refused = states.change(&name, 1, Change::Write(b"later".to_vec())).await.expect_err("too late");
        assert_eq!(refused.status, 409);
        assert_eq!(states.read(&name).await.expect("read").as_deref(), Some(&b"late"[..]));
    }

    #[test]
    fn folder_has_one_user_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("states");
        let states = States::open(&path).expect("free");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert!(matches!(States::open(&link), Err(StatesError::InUse(_))));
        drop(states);
        States::open(&link).expect("free again");
    }

    #[test]
    fn folder_is_refused_when_the_one_around_it_is_missing() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().expect("a folder");
        let refused = States::open(&folder.path().join("mistyped/states")).expect_err("nowhere");
        assert!(refused.to_string().contains("make that first"), "{refused}");
        assert!(!folder.path().join("mistyped").exists());
        let path = folder.path().join("states");
        drop(States::open(&path).expect("made"));
        assert!(!is_open_to_others(&path).expect("there"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
        assert!(is_open_to_others(&path).expect("there"));
        drop(States::open(&path).expect("it is the operator's choice"));
        fs::write(folder.path().join("file"), "").expect("written");
        States::open(&folder.path().join("file")).expect_err("no folder");
    }

    #[test]
    fn fence_that_is_damaged_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let (states, name) = (States::open(folder.path()).expect("free"), Name::parse("network").expect("plain"));
        assert_eq!(states.fence(&name).expect("none yet"), 0);
        states.set_fence(&name, 17).expect("written");
        assert_eq!(states.fence(&name).expect("read"), 17);
        for damaged in ["", "17", "x network\n", "-1 network\n", "17 Network\n"] {
            fs::write(folder.path().join("network.fence"), damaged).expect("damaged");
            states.fence(&name).expect_err("a fence of 0 would admit everybody");
        }
    }

    #[test]
    fn version_before_is_kept_when_a_state_changes() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().expect("a folder");
        let (states, name) = (States::open(folder.path()).expect("free"), Name::parse("network").expect("plain"));
        let kept = || if_exists(fs::read(folder.path().join("network.tfstate.backup"))).expect("read");
        assert_eq!((states.read(&name).expect("read"), kept()), (None, None));
        for (state, before) in [("1", None), ("2", Some("1")), ("3", Some("2"))] {
            states.write(&name, state.as_bytes()).expect("written");
            assert_eq!(states.read(&name).expect("read"), Some(state.into()));
            assert_eq!(kept(), before.map(Into::into));
        }
        states.write(&name, b"3").expect("repeated");
        assert_eq!(kept(), Some("2".into()), "a repeat changes nothing");
        states.remove(&name).expect("removed");
        states.remove(&name).expect("removed already");
        assert_eq!((states.read(&name).expect("read"), kept()), (None, Some("3".into())));
        states.write(&name, b"4").expect("written");
        assert_eq!(kept(), Some("3".into()), "the last version that was removed");
        for file in fs::read_dir(folder.path()).expect("a folder").map(|file| file.expect("a file")) {
            let mode = file.metadata().expect("its mode").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file:?}");
        }
    }

    #[test]
    fn unfinished_files_are_removed_when_the_folder_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(".leasehold-abc"), "half a state").expect("written");
        fs::write(folder.path().join("network.tfstate"), "{}").expect("written");
        let states = States::open(folder.path()).expect("free");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
        fs::write(folder.path().join("network.tfstate.backup"), "{}").expect("written");
        assert_eq!(states.count().expect("readable"), 1);
        assert!(states.read(&Name::parse("network").expect("plain")).expect("read").is_some());
    }

    #[test]
    fn state_is_not_missing_when_its_folder_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, moved) = (folder.path().join("states"), folder.path().join("moved"));
        let (states, name) = (States::open(&path).expect("free"), Name::parse("network").expect("plain"));
        assert_eq!(states.read(&name).expect("read"), None);
        fs::rename(&path, &moved).expect("moved");
        states.read(&name).expect_err("there is no folder");
        fs::create_dir(&path).expect("made");
        states.read(&name).expect_err("another folder");
    }
}
