//! Reads DynamoDB's expressions as far as needed to split them, to extend them, and to find the names in them.

use std::collections::{BTreeSet, HashMap};

use crate::attributes::RESERVED_PREFIX;

const CLAUSES: [&str; 4] = ["SET", "REMOVE", "ADD", "DELETE"];

/// A word, a placeholder with its `#` or `:`, or one other character; and the position of its first byte.
type Token<'a> = (usize, &'a str);

fn tokens(text: &str) -> Vec<Token<'_>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = text.char_indices().peekable();
    while let Some((start, first)) = rest.next() {
        if first.is_whitespace() {
            continue;
        }
        let mut end = start + first.len_utf8();
        if is_word(first) || first == '#' || first == ':' {
            while let Some((at, c)) = rest.next_if(|(_, c)| is_word(*c)) {
                end = at + c.len_utf8();
            }
        }
        tokens.push((start, &text[start..end]));
    }
    tokens
}

/// The words, placeholders and other characters of an expression, in their order.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    tokens(text).into_iter().map(|(_, token)| token)
}

/// The `#names` and `:values` of an expression.
pub(crate) fn placeholders(text: &str) -> BTreeSet<&str> {
    tokens(text).into_iter().map(|(_, token)| token).filter(|token| token.starts_with(['#', ':'])).collect()
}

/// Whether an expression names an attribute or a placeholder that belongs to this protocol.
pub(crate) fn names_reserved(text: &str) -> bool {
    tokens(text).iter().any(|(_, token)| token.trim_start_matches(['#', ':']).starts_with(RESERVED_PREFIX))
}

/// Returns an update expression with one more assignment in its `SET` clause.
pub(crate) fn and_set(update: &str, assignment: &str) -> String {
    let set = clauses(update).into_iter().find(|((_, token), begins)| *begins && token.eq_ignore_ascii_case("SET"));
    match set {
        Some(((start, token), _)) => {
            let (before, after) = update.split_at(start + token.len());
            format!("{before} {assignment}, {after}")
        }
        None => format!("{update} SET {assignment}"),
    }
}

/// The paths that an update expression changes, as written in it.
pub(crate) fn changed_paths(update: &str) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    let mut depth = 0;
    // Whether the tokens belong to a path, rather than to an operand.
    let mut in_path = false;
    for ((_, token), begins_clause) in clauses(update) {
        if begins_clause || (token == "," && depth == 0) {
            paths.push(String::new());
            in_path = true;
            continue;
        }
        match token {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        // The value of an ADD or DELETE, or the operand of a SET, ends the path.
        in_path &= token != "=" && !token.starts_with(':');
        if let (true, Some(path)) = (in_path, paths.last_mut()) {
            path.push_str(token);
        }
    }
    paths.retain(|path| !path.is_empty());
    paths
}

/// The name of the attribute that a path begins with, its placeholder resolved.
pub(crate) fn top_level<'a>(path: &'a str, names: &'a HashMap<String, String>) -> &'a str {
    let first = path.split(['.', '[']).next().unwrap_or_default();
    names.get(first).map_or(first, String::as_str)
}

/// The tokens of an update expression, each with whether it begins a clause. A keyword in the place of a name or an
/// operand is a name: DynamoDB decides whether it accepts such a name.
fn clauses(update: &str) -> Vec<(Token<'_>, bool)> {
    let mut is_name_due = false;
    tokens(update)
        .into_iter()
        .map(|(start, token)| {
            let begins = !is_name_due && CLAUSES.iter().any(|clause| token.eq_ignore_ascii_case(clause));
            is_name_due = begins || matches!(token, "," | "=" | "+" | "-" | "(" | "." | "[");
            ((start, token), begins)
        })
        .collect()
}

/// Both conditions, where there are two. `theirs` must be balanced: see [`is_balanced`].
pub(crate) fn both(ours: &str, theirs: Option<&str>) -> String {
    match theirs {
        None => ours.to_owned(),
        // DynamoDB refuses parentheses around parentheses.
        Some(theirs) if is_wrapped(theirs) => format!("{ours} AND {theirs}"),
        Some(theirs) => format!("{ours} AND ({theirs})"),
    }
}

/// Whether each opening parenthesis has a closing one after it, so that the text stays one operand inside added
/// parentheses.
pub(crate) fn is_balanced(text: &str) -> bool {
    let depths = depths(text);
    depths.iter().all(|&depth| depth >= 0) && depths.last().is_none_or(|&depth| depth == 0)
}

/// Whether the first parenthesis is closed by the last.
fn is_wrapped(text: &str) -> bool {
    let depths = depths(text);
    text.trim_start().starts_with('(') && depths.iter().position(|&depth| depth == 0) == depths.len().checked_sub(1)
}

/// The number of open parentheses after each token.
fn depths(text: &str) -> Vec<i32> {
    let step = |depth: &mut i32, (_, token): Token<'_>| {
        *depth += match token {
            "(" => 1,
            ")" => -1,
            _ => 0,
        };
        Some(*depth)
    };
    tokens(text).into_iter().scan(0, step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_found_wherever_they_stand() {
        let found = placeholders("SET #a.b[0] = if_not_exists(#a.c,:zero)+:one REMOVE d.#e, f");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["#a", "#e", ":one", ":zero"]);
    }

    #[test]
    fn assignment_joins_the_set_clause() {
        for (update, merged) in [
            ("SET a = :a", "SET x = :x,  a = :a"),
            ("set a = :a, b = :b REMOVE c", "set x = :x,  a = :a, b = :b REMOVE c"),
            ("REMOVE c SET a = :a", "REMOVE c SET x = :x,  a = :a"),
            ("ADD n :one", "ADD n :one SET x = :x"),
            ("REMOVE a.set", "REMOVE a.set SET x = :x"),
            ("DELETE s :members\nSET\ta=:a", "DELETE s :members\nSET x = :x, \ta=:a"),
            ("REMOVE l[0] SET #set = :set", "REMOVE l[0] SET x = :x,  #set = :set"),
        ] {
            assert_eq!(and_set(update, "x = :x"), merged);
        }
    }

    #[test]
    fn paths_that_an_update_changes_are_found() {
        for (update, expected) in [
            ("SET a = :a", vec!["a"]),
            ("SET a = if_not_exists(b, :zero) + :one, #c.d[1].#e = list_append(f, :l)", vec!["a", "#c.d[1].#e"]),
            (
                "REMOVE l[0], m.set SET #set = #x - :a ADD n :one DELETE s :members",
                vec!["l[0]", "m.set", "#set", "n", "s"],
            ),
            ("add\n n\t:one,m :two set b=c", vec!["n", "m", "b"]),
        ] {
            assert_eq!(changed_paths(update), expected, "{update}");
        }
        let names = HashMap::from([("#c".to_owned(), "real".to_owned())]);
        assert_eq!((top_level("#c.d[1]", &names), top_level("l[0]", &names)), ("real", "l"));
    }

    #[test]
    fn conditions_are_joined_without_a_way_around_ours() {
        for (theirs, joined) in [
            ("a = :a", "x AND (a = :a)"),
            ("(a = :a)", "x AND (a = :a)"),
            ("(a = :a AND (b = :b))", "x AND (a = :a AND (b = :b))"),
            ("(a) AND (b)", "x AND ((a) AND (b))"),
            ("(a = :a OR b = :b) AND size(c) > :c", "x AND ((a = :a OR b = :b) AND size(c) > :c)"),
        ] {
            assert!(is_balanced(theirs));
            assert_eq!(both("x", Some(theirs)), joined);
        }
        assert_eq!(both("x", None), "x");
        for hostile in ["a = :a) OR (b = :b", "(a = :a", "a = :a)", ")(", "(a))((b)"] {
            assert!(!is_balanced(hostile), "{hostile}");
        }
    }

    #[test]
    fn reserved_names_are_recognised() {
        assert!(names_reserved("attribute_not_exists(leaseholdTxId)"));
        assert!(names_reserved("a = :leaseholdTxNow"));
        assert!(!names_reserved("myLeaseholdTxId = :a AND leasehold = :b"));
    }
}
