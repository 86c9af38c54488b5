//! `leasehold token`: makes a token for `leasehold serve --token-file`.

use std::path::PathBuf;

use clap::Args;
use leasehold_server::{TokenEntry, Tokens, new_token};

use crate::Failure;
use crate::output::print;

/// Make a token for `leasehold serve --token-file`. Prints the token once; the file keeps its hash only.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// The name of its bearer, which becomes the principal `token:NAME`.
    name: String,

    /// The file of the tokens. It is created where it is missing.
    #[arg(long, value_name = "PATH", env = "LEASEHOLD_TOKEN_FILE")]
    file: PathBuf,

    /// Let the bearer touch only keys that begin with this. May be repeated. Without it: all keys.
    #[arg(long, value_name = "PREFIX")]
    prefix: Vec<String>,

    /// Let the bearer use transactions, which reach the tables of items, although it may touch only some keys.
    #[arg(long, requires = "prefix")]
    transactions: bool,
}

pub(crate) fn main(args: &TokenArgs) -> Result<(), Failure> {
    let (token, sha256) = new_token();
    let prefixes = (!args.prefix.is_empty()).then(|| args.prefix.clone());
    let transactions = args.transactions.then_some(true);
    let entry = TokenEntry { name: args.name.clone(), sha256, prefixes, transactions };
    Tokens::add(&args.file, entry).map_err(|error| Failure::usage(error.to_string()))?;
    print(&token).map_err(|_| {
        let (name, file) = (&args.name, args.file.display());
        Failure::failed(format!(
            "the token could not be printed: remove the entry of {name:?} from {file}, and try again"
        ))
    })
}
