//! The expressions of a write, parsed once.
//!
//! The engine has accepted the texts before. So nothing is checked here, and what is not known here has no form.

use std::iter::Peekable;
use std::vec::IntoIter;

/// A condition on an item.
pub(super) enum Condition {
    Compare(Operand, Comparison, Operand),
    Between(Operand, Operand, Operand),
    Exists(String),
    HasType(String, Operand),
    BeginsWith(Operand, Operand),
    Contains(Operand, Operand),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Not(Box<Self>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// What a condition compares.
pub(super) enum Operand {
    Attribute(String),
    /// The place of a value among those of the request.
    Value(usize),
    Size(String),
}

/// What an update stores.
pub(super) enum Source {
    Attribute(String),
    Value(usize),
    IfNotExists(String, Box<Self>),
    Sum(Box<Self>, Box<Self>),
    Difference(Box<Self>, Box<Self>),
}

/// The changes of an item. Each sees the item as it was.
#[derive(Default)]
pub(super) struct Update {
    pub(super) set: Vec<(String, Source)>,
    pub(super) removed: Vec<String>,
}

/// The names and the values that an expression may mention.
pub(super) struct Scope<'a> {
    pub(super) names: &'a [(String, String)],
    pub(super) values: &'a [String],
}

/// Returns the condition in this text, if its form is known.
pub(super) fn condition(text: &str, scope: &Scope<'_>) -> Option<Condition> {
    let mut parser = Parser::new(text, scope)?;
    let condition = parser.any()?;
    parser.is_at_end().then_some(condition)
}

/// Returns the update in this text, if its form is known.
pub(super) fn update(text: &str, scope: &Scope<'_>) -> Option<Update> {
    let mut parser = Parser::new(text, scope)?;
    let mut update = Update::default();
    while !parser.is_at_end() {
        if parser.takes_word("SET") {
            loop {
                let name = parser.attribute()?;
                parser.expect("=")?;
                update.set.push((name, parser.source()?));
                if !parser.takes(",") {
                    break;
                }
            }
        } else if parser.takes_word("REMOVE") {
            loop {
                update.removed.push(parser.attribute()?);
                if !parser.takes(",") {
                    break;
                }
            }
        } else {
            return None;
        }
    }
    Some(update)
}

struct Parser<'a> {
    tokens: Peekable<IntoIter<&'a str>>,
    scope: &'a Scope<'a>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, scope: &'a Scope<'a>) -> Option<Self> {
        Some(Self { tokens: tokens(text)?.into_iter().peekable(), scope })
    }

    fn is_at_end(&mut self) -> bool {
        self.tokens.peek().is_none()
    }

    fn takes(&mut self, token: &str) -> bool {
        self.tokens.next_if(|next| *next == token).is_some()
    }

    fn takes_word(&mut self, word: &str) -> bool {
        self.tokens.next_if(|next| next.eq_ignore_ascii_case(word)).is_some()
    }

    fn expect(&mut self, token: &str) -> Option<()> {
        self.takes(token).then_some(())
    }

    fn any(&mut self) -> Option<Condition> {
        let mut condition = self.all()?;
        while self.takes_word("OR") {
            condition = Condition::Or(Box::new(condition), Box::new(self.all()?));
        }
        Some(condition)
    }

    fn all(&mut self) -> Option<Condition> {
        let mut condition = self.negated()?;
        while self.takes_word("AND") {
            condition = Condition::And(Box::new(condition), Box::new(self.negated()?));
        }
        Some(condition)
    }

    fn negated(&mut self) -> Option<Condition> {
        if self.takes_word("NOT") { Some(not(self.negated()?)) } else { self.one() }
    }

    fn one(&mut self) -> Option<Condition> {
        if self.takes("(") {
            let condition = self.any()?;
            self.expect(")")?;
            return Some(condition);
        }
        let next = *self.tokens.peek()?;
        match next {
            "attribute_exists" => Some(Condition::Exists(self.argument()?)),
            "attribute_not_exists" => Some(not(Condition::Exists(self.argument()?))),
            "attribute_type" => {
                self.open()?;
                let name = self.attribute()?;
                self.expect(",")?;
                let kind = self.operand()?;
                self.expect(")")?;
                Some(Condition::HasType(name, kind))
            }
            "begins_with" => self.pair().map(|(whole, start)| Condition::BeginsWith(whole, start)),
            "contains" => self.pair().map(|(whole, part)| Condition::Contains(whole, part)),
            _ => self.comparison(),
        }
    }

    fn comparison(&mut self) -> Option<Condition> {
        let left = self.operand()?;
        if self.takes_word("BETWEEN") {
            let low = self.operand()?;
            self.takes_word("AND").then_some(())?;
            return Some(Condition::Between(left, low, self.operand()?));
        }
        let comparison = match self.tokens.next()? {
            "=" => Comparison::Equal,
            "<>" => Comparison::Unequal,
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            _ => return None,
        };
        Some(Condition::Compare(left, comparison, self.operand()?))
    }

    /// The function's name and its opening parenthesis.
    fn open(&mut self) -> Option<()> {
        self.tokens.next()?;
        self.expect("(")
    }

    fn argument(&mut self) -> Option<String> {
        self.open()?;
        let name = self.attribute()?;
        self.expect(")")?;
        Some(name)
    }

    fn pair(&mut self) -> Option<(Operand, Operand)> {
        self.open()?;
        let first = self.operand()?;
        self.expect(",")?;
        let second = self.operand()?;
        self.expect(")")?;
        Some((first, second))
    }

    fn operand(&mut self) -> Option<Operand> {
        let next = *self.tokens.peek()?;
        match next {
            "size" => Some(Operand::Size(self.argument()?)),
            token if token.starts_with(':') => Some(Operand::Value(self.value()?)),
            _ => Some(Operand::Attribute(self.attribute()?)),
        }
    }

    fn source(&mut self) -> Option<Source> {
        let first = self.term()?;
        if self.takes("+") {
            Some(Source::Sum(Box::new(first), Box::new(self.term()?)))
        } else if self.takes("-") {
            Some(Source::Difference(Box::new(first), Box::new(self.term()?)))
        } else {
            Some(first)
        }
    }

    fn term(&mut self) -> Option<Source> {
        let next = *self.tokens.peek()?;
        match next {
            "if_not_exists" => {
                self.open()?;
                let name = self.attribute()?;
                self.expect(",")?;
                let otherwise = self.term()?;
                self.expect(")")?;
                Some(Source::IfNotExists(name, Box::new(otherwise)))
            }
            token if token.starts_with(':') => Some(Source::Value(self.value()?)),
            _ => Some(Source::Attribute(self.attribute()?)),
        }
    }

    /// The name of a whole attribute.
    fn attribute(&mut self) -> Option<String> {
        let token = self.tokens.next()?;
        if token.starts_with('#') {
            return self.scope.names.iter().find(|(placeholder, _)| placeholder == token).map(|(_, name)| name.clone());
        }
        let is_name = token.starts_with(|character: char| character.is_ascii_alphabetic() || character == '_');
        // A name before a parenthesis is a function.
        (is_name && self.tokens.peek() != Some(&"(")).then(|| token.to_owned())
    }

    fn value(&mut self) -> Option<usize> {
        let token = self.tokens.next()?;
        self.scope.values.iter().position(|value| value == token)
    }
}

fn not(condition: Condition) -> Condition {
    Condition::Not(Box::new(condition))
}

/// Divides an expression. None: it has a path into an attribute, or a character that has no place in one.
fn tokens(text: &str) -> Option<Vec<&str>> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut tokens = Vec::new();
    let mut rest = text.trim_ascii_start();
    while let [first, behind @ ..] = rest.as_bytes() {
        let length = match first {
            b'#' | b':' => 1 + behind.iter().take_while(|byte| is_word(byte)).count(),
            b'<' if matches!(behind.first(), Some(b'>' | b'=')) => 2,
            b'>' if behind.first() == Some(&b'=') => 2,
            b'=' | b'<' | b'>' | b'(' | b')' | b',' | b'+' | b'-' => 1,
            byte if is_word(byte) => rest.bytes().take_while(|byte| is_word(byte)).count(),
            _ => return None,
        };
        let (token, next) = rest.split_at_checked(length)?;
        tokens.push(token);
        rest = next.trim_ascii_start();
    }
    Some(tokens)
}
