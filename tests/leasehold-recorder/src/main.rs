//! Records the traces.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use leasehold_recorder::{all, committed, unshown, untaken};

fn main() -> std::io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (folder, files) = match arguments[..] {
        [] => (Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/vectors/traces"), committed()),
        ["--seeds", from, to, folder] => {
            let (Ok(from), Ok(to)) = (from.parse(), to.parse()) else { return Ok(usage()) };
            let mut files: BTreeMap<&str, String> = BTreeMap::new();
            for (rule, trace) in all(from, to) {
                files.entry(rule).or_default().push_str(&trace.text());
            }
            (PathBuf::from(folder), files)
        }
        _ => return Ok(usage()),
    };
    fs::create_dir_all(&folder)?;
    for (rule, text) in &files {
        fs::write(folder.join(format!("{rule}.jsonl")), text)?;
        println!("{rule}: {} bytes, {} lines", text.len(), text.lines().count());
    }
    for branch in untaken(files.values()) {
        eprintln!("no trace takes the branch {branch}");
    }
    for fact in unshown() {
        eprintln!("no trace shows {fact}");
    }
    Ok(ExitCode::SUCCESS)
}

fn usage() -> ExitCode {
    eprintln!("usage: leasehold-recorder [--seeds FROM TO FOLDER]");
    ExitCode::from(2)
}
