//! PartiQL statements, as far as their price needs them: the table, and the key of the one item.

use serde_json::{Map, Value, json};

/// A statement, divided into names, literals and signs.
pub(crate) struct Statement<'a> {
    tokens: Vec<&'a str>,
    parameters: &'a [Value],
}

impl<'a> Statement<'a> {
    /// Reads a member of a batch, or a request of one statement.
    pub(crate) fn of(request: &'a Value) -> Option<Self> {
        let text = request.get("Statement")?.as_str()?;
        let parameters = request.get("Parameters").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        Some(Self { tokens: tokens(text), parameters })
    }

    pub(crate) fn is_select(&self) -> bool {
        self.begins("SELECT")
    }

    pub(crate) fn is_insert(&self) -> bool {
        self.begins("INSERT")
    }

    fn begins(&self, word: &str) -> bool {
        self.tokens.first().is_some_and(|first| first.eq_ignore_ascii_case(word))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tokens.iter().map(|token| token.len()).sum()
    }

    /// How many commas are outside of texts: the values that are written out are one more at most.
    pub(crate) fn commas(&self) -> u64 {
        self.tokens.iter().filter(|token| **token == ",").count() as u64
    }

    /// The table whose items the statement reads or changes. None: an index, or no table at all.
    pub(crate) fn table(&self) -> Option<&'a str> {
        let before = |token: &&str| ["FROM", "UPDATE", "INTO"].iter().any(|word| word.eq_ignore_ascii_case(token));
        let at = 1 + self.tokens.iter().position(before)?;
        let name = unquoted(self.tokens.get(at)?);
        (self.tokens.get(at + 1) != Some(&".")).then_some(name)
    }

    /// The key of the only item that the statement reads or changes. None: it may be another, or several.
    pub(crate) fn key<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Option<Map<String, Value>> {
        if self.tokens.iter().any(|token| ["OR", "IN"].iter().any(|word| word.eq_ignore_ascii_case(token))) {
            return None;
        }
        names.into_iter().map(|name| Some((name.to_owned(), self.value_of(name)?))).collect()
    }

    /// The value that the attribute must equal, if there is exactly one.
    fn value_of(&self, name: &str) -> Option<Value> {
        let conditions = self.tokens.iter().position(|token| token.eq_ignore_ascii_case("WHERE"))?;
        let mut places = (conditions..self.tokens.len()).filter(|at| unquoted(self.tokens[*at]) == name);
        let (Some(at), None) = (places.next(), places.next()) else { return None };
        let [_, "=", value, ..] = self.tokens[at..] else { return None };
        match value.as_bytes() {
            b"?" => {
                let before = self.tokens[..at].iter().filter(|token| **token == "?").count();
                self.parameters.get(before).cloned()
            }
            [b'\'', ..] => Some(json!({ "S": unquoted(value).replace("''", "'") })),
            _ => Some(json!({ "N": value })),
        }
    }
}

fn tokens(text: &str) -> Vec<&str> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-#:".contains(byte) || !byte.is_ascii();
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let [first, behind @ ..] = rest.as_bytes() {
        let length = match first {
            quote @ (b'"' | b'\'') => {
                // A doubled quote does not end the text: another one begins right behind it.
                let mut end = 0;
                loop {
                    end += behind[end..].iter().position(|byte| byte == quote).map_or(behind.len() - end, |at| at + 1);
                    if behind.get(end) != Some(quote) {
                        break 1 + end;
                    }
                    end += 1;
                }
            }
            byte if is_word(byte) => rest.bytes().take_while(|byte| is_word(byte)).count(),
            _ => 1,
        };
        let (token, next) = rest.split_at_checked(length).unwrap_or((rest, ""));
        tokens.push(token);
        rest = next.trim_start();
    }
    tokens
}

fn unquoted(token: &str) -> &str {
    let quoted = ['"', '\''].into_iter().find_map(|quote| token.strip_prefix(quote)?.strip_suffix(quote));
    quoted.unwrap_or(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_found_when_the_statement_has_one_item() {
        for (text, table, key) in [
            (r#"UPDATE "t" SET a = ? WHERE "id" = ?"#, Some("t"), Some(json!({ "id": { "S": "second" } }))),
            ("DELETE FROM t WHERE id = 'it''s' AND a > 1", Some("t"), Some(json!({ "id": { "S": "it's" } }))),
            ("SELECT id, a FROM t WHERE id = ?", Some("t"), Some(json!({ "id": { "S": "first" } }))),
            ("select * from t where id=12", Some("t"), Some(json!({ "id": { "N": "12" } }))),
            (r#"SELECT * FROM "t"."i" WHERE id = ?"#, None, Some(json!({ "id": { "S": "first" } }))),
            ("SELECT * FROM t WHERE id = ? OR a = 1", Some("t"), None),
            ("SELECT * FROM t WHERE id IN ('a', 'b')", Some("t"), None),
            ("SELECT * FROM t WHERE id = 'a' AND id = 'b'", Some("t"), None),
            ("SELECT * FROM t WHERE id > 'a'", Some("t"), None),
            ("SELECT * FROM t WHERE id = ?2", Some("t"), Some(json!({ "id": { "S": "first" } }))),
            ("SELECT * FROM t", Some("t"), None),
            ("INSERT INTO \"t\" VALUE {'id': 'a'}", Some("t"), None),
            ("DELETE FROM t WHERE a = 'id = ''x", Some("t"), None),
            ("", None, None),
            ("'", None, None),
            ("\"''\"é", None, None),
        ] {
            let request = json!({ "Statement": text, "Parameters": [{ "S": "first" }, { "S": "second" }] });
            let statement = Statement::of(&request).expect("a statement");
            assert_eq!((statement.table(), statement.key(["id"]).map(Value::from)), (table, key), "{text}");
        }
    }
}
