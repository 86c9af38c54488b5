//! Transactions of writes, as far as the engine carries out what DynamoDB refuses.

use dynoxide::actions::transact_write_items::{TransactUpdate, TransactWriteItemsRequest, TransactWriteItemsResponse};
use dynoxide::errors::CancellationReason;
use dynoxide::{Database, DynoxideError};

/// Runs a TransactWriteItems. The engine lets an update in it change the key of its item, and the row then counts as
/// absent: a held lock would look free.
pub(crate) fn write(
    database: &Database,
    request: TransactWriteItemsRequest,
) -> dynoxide::Result<TransactWriteItemsResponse> {
    let updates = request.transact_items.iter().map(|item| item.update.as_ref());
    let changed: Vec<_> = updates.map(|update| update.and_then(changed_key)).collect();
    if changed.iter().all(Option::is_none) {
        return database.transact_write_items(request);
    }
    let reasons: Vec<_> = changed.into_iter().map(reason).collect();
    let codes: Vec<_> = reasons.iter().map(|reason| reason.code.as_str()).collect();
    let message =
        format!("Transaction cancelled, please refer cancellation reasons for specific reasons [{}]", codes.join(", "));
    Err(DynoxideError::TransactionCanceledException(message, reasons))
}

fn reason(changed: Option<&str>) -> CancellationReason {
    let words = |name| {
        format!(
            "One or more parameter values were invalid: Cannot update attribute {name}. This attribute is part of the key"
        )
    };
    let code = if changed.is_some() { "ValidationError" } else { "None" };
    CancellationReason { code: code.to_owned(), message: changed.map(words), ..CancellationReason::default() }
}

/// The part of its item's key that an update changes.
fn changed_key(update: &TransactUpdate) -> Option<&str> {
    let names = update.expression_attribute_names.as_ref();
    let resolved = |word| names.and_then(|names| names.get(word)).map_or(word, String::as_str);
    changed(&update.update_expression).into_iter().map(resolved).find(|name| update.key.contains_key(*name))
}

/// The attributes that an update expression changes, as it names them.
fn changed(expression: &str) -> Vec<&str> {
    /// What a word is.
    enum Next {
        Clause,
        Target,
        Operand,
    }
    let is_word = |character: char| character.is_alphanumeric() || "_#:".contains(character);
    let (mut changed, mut next, mut depth, mut rest) = (Vec::new(), Next::Clause, 0, expression);
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, behind) = rest.split_at(length);
        let is_clause = || ["SET", "REMOVE", "ADD", "DELETE"].iter().any(|clause| clause.eq_ignore_ascii_case(token));
        next = match (token, next) {
            ("(" | "[", _) => {
                depth += 1;
                Next::Operand
            }
            (")" | "]", _) => {
                depth -= 1;
                Next::Clause
            }
            (",", _) if depth == 0 => Next::Target,
            ("," | "." | "=" | "+" | "-", _) => Next::Operand,
            (_, next) if !is_word(first) => next,
            (_, Next::Target) => {
                changed.push(token);
                Next::Clause
            }
            (_, Next::Clause) if is_clause() => Next::Target,
            _ => Next::Clause,
        };
        rest = behind;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_an_update_changes_are_found() {
        for (expression, expected) in [
            ("SET a = :v", &["a"][..]),
            ("set a=:v,#b = c remove d, e.f[1].g ADD h :n DELETE i :s", &["a", "#b", "d", "e", "h", "i"]),
            ("SET a = if_not_exists(b, :v) + :w, c[3] = list_append(d, :e)", &["a", "c"]),
            ("SET a = remove REMOVE pk", &["a", "pk"]),
            ("SET remove = :v, x = add.set REMOVE y", &["remove", "x", "y"]),
            ("SET a.remove = b.set ADD c :v", &["a", "c"]),
            ("\nREMOVE\tpk", &["pk"]),
            ("SET a", &["a"]),
            ("", &[]),
            (")))(((é, ,", &[]),
        ] {
            assert_eq!(changed(expression), expected, "{expression}");
        }
    }
}
