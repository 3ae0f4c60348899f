//! Cuts PTX text into tokens, each with its line. Comments and preprocessor lines are skipped.

use super::ParseError;

/// A piece of PTX text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'a> {
    /// A name, a directive or an opcode with its modifiers: letters, digits, `_`, `$`, `%`, `.`, and `::` between letters.
    Word(&'a str),
    /// An integer.
    Integer(u64),
    /// The bits of a single-precision constant (`0f3F800000`).
    Float32(u32),
    /// The bits of a double-precision constant (`0d…`, or written in decimal).
    Float64(u64),
    /// What stands between quotes.
    Text(&'a str),
    /// One of `{}[]()<>,;:@!|+-*/=~&^`.
    Mark(u8),
    /// The end of the text.
    End,
}

impl Token<'_> {
    /// The token as an error message shows it.
    pub(crate) fn describe(&self) -> String {
        match self {
            Token::Word(word) => format!("`{}`", word.chars().take(80).collect::<String>()),
            Token::Integer(value) => format!("`{value}`"),
            Token::Float32(bits) => format!("`0f{bits:08X}`"),
            Token::Float64(bits) => format!("`0d{bits:016X}`"),
            Token::Text(text) => format!("\"{}\"", text.chars().take(80).collect::<String>()),
            Token::Mark(mark) => format!("`{}`", *mark as char),
            Token::End => "the end of the text".to_owned(),
        }
    }
}

/// All tokens of `text` with their lines, [`Token::End`] last.
pub(crate) fn tokens(text: &str) -> Result<Vec<(Token<'_>, u32)>, ParseError> {
    let bytes = text.as_bytes();
    let mut result = Vec::with_capacity(bytes.len() / 5);
    let (mut at, mut line) = (0, 1u32);
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
            }
            byte if byte.is_ascii_whitespace() || byte == 0 => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => at += count(bytes, at, |byte| byte != b'\n'),
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let opened = line;
                at += 2;
                loop {
                    match bytes.get(at) {
                        None => return Err(ParseError::new(opened, "`*/`", "the end of the text")),
                        Some(b'*') if bytes.get(at + 1) == Some(&b'/') => break,
                        Some(&byte) => line += u32::from(byte == b'\n'),
                    }
                    at += 1;
                }
                at += 2;
            }
            b'#' => at += count(bytes, at, |byte| byte != b'\n'),
            b'"' => {
                at += 1 + count(bytes, at + 1, |byte| byte != b'"' && byte != b'\n');
                if bytes.get(at) != Some(&b'"') {
                    return Err(ParseError::new(line, "a closing quote", "the end of the line"));
                }
                result.push((Token::Text(&text[start + 1..at]), line));
                at += 1;
            }
            byte if byte.is_ascii_digit() => {
                at += number_length(&bytes[at..]);
                result.push((number(&text[start..at], line)?, line));
            }
            byte if is_word(byte) => {
                while at < bytes.len() {
                    if is_word(bytes[at]) {
                        at += 1;
                    } else if bytes[at..].starts_with(b"::") && bytes.get(at + 2).is_some_and(|&next| is_word(next)) {
                        at += 2;
                    } else {
                        break;
                    }
                }
                result.push((Token::Word(&text[start..at]), line));
            }
            byte if b"{}[]()<>,;:@!|+-*/=~&^".contains(&byte) => {
                result.push((Token::Mark(byte), line));
                at += 1;
            }
            _ => {
                let character = text.get(at..).and_then(|rest| rest.chars().next()).unwrap_or('?');
                return Err(ParseError::new(line, "PTX", format!("the character {character:?}")));
            }
        }
    }
    result.push((Token::End, line));
    Ok(result)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

fn count(bytes: &[u8], from: usize, while_true: impl Fn(u8) -> bool) -> usize {
    bytes.get(from..).map_or(0, |rest| rest.iter().take_while(|&&byte| while_true(byte)).count())
}

/// How long the number at the start of `bytes` is: letters and digits, a decimal point and the sign of an exponent.
fn number_length(bytes: &[u8]) -> usize {
    let decimal = !matches!(bytes, [b'0', b'x' | b'X' | b'f' | b'F' | b'd' | b'D' | b'b' | b'B', ..]);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let sign_of_exponent = decimal && matches!(byte, b'+' | b'-') && at > 0 && matches!(bytes[at - 1], b'e' | b'E');
        if byte.is_ascii_alphanumeric() || byte == b'_' || (decimal && byte == b'.') || sign_of_exponent {
            at += 1;
        } else {
            break;
        }
    }
    at
}

fn number(text: &str, line: u32) -> Result<Token<'static>, ParseError> {
    let wrong = || ParseError::new(line, "a number", format!("`{}`", text.chars().take(80).collect::<String>()));
    let integer = |digits: &str, radix| {
        u64::from_str_radix(digits.strip_suffix('U').unwrap_or(digits), radix).map(Token::Integer).map_err(|_| wrong())
    };
    match text.as_bytes() {
        [b'0', b'f' | b'F', ..] if text.len() == 10 => {
            u32::from_str_radix(&text[2..], 16).map(Token::Float32).map_err(|_| wrong())
        }
        [b'0', b'd' | b'D', ..] if text.len() == 18 => {
            u64::from_str_radix(&text[2..], 16).map(Token::Float64).map_err(|_| wrong())
        }
        [b'0', b'x' | b'X', ..] => integer(&text[2..], 16),
        [b'0', b'b' | b'B', ..] => integer(&text[2..], 2),
        _ if text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) => {
            text.parse::<f64>().map(|value| Token::Float64(value.to_bits())).map_err(|_| wrong())
        }
        [b'0', b'0'..=b'7', ..] => integer(&text[1..], 8),
        _ => integer(text, 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_marks_are_told_apart_with_their_lines() {
        let text =
            "ld.global.L1::no_allocate.v4.b32 {%r1}, [%rd1+-8]; // note\n/* two\nlines */ 0f3F800000 1.5e-3 0x1F 017";
        let tokens = tokens(text).unwrap();
        assert_eq!(tokens[0], (Token::Word("ld.global.L1::no_allocate.v4.b32"), 1));
        assert!(tokens.contains(&(Token::Mark(b'-'), 1)));
        assert!(tokens.contains(&(Token::Float32(0x3f80_0000), 3)));
        assert!(tokens.contains(&(Token::Float64(1.5e-3f64.to_bits()), 3)));
        assert!(tokens.contains(&(Token::Integer(0x1f), 3)) && tokens.contains(&(Token::Integer(0o17), 3)));
    }

    #[test]
    fn what_is_no_token_is_an_error_with_its_line() {
        assert_eq!(tokens("\n\n  é").unwrap_err().to_string(), "line 3: expected PTX, found the character 'é'");
        assert!(tokens("/* open").is_err() && tokens("\"open\n").is_err() && tokens("0xZZ").is_err());
    }
}
