//! Names and other text from outside, as they are shown: whatever a file or a caller calls things, a terminal sees only
//! printable characters.
//!
//! A name can hold escape sequences that recolour, retitle or clear a terminal, line breaks that look like other messages, and
//! marks that turn the direction of what follows. All of these are written as Rust writes them in a string, and so is the
//! backslash, so that what is shown stands for one name only.

use crate::failure::Failure;
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::{self, Display, Write};

/// Longer names are cut; no path is longer.
const CHARACTERS_MAX: usize = 4096;

/// Shows a path, a tensor's name, or any other text that somebody else chose.
pub(crate) fn shown<S: AsRef<OsStr> + ?Sized>(name: &S) -> Shown<'_> {
    Shown(name.as_ref())
}

/// See [`shown`].
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a>(&'a OsStr);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut room = CHARACTERS_MAX;
        for chunk in self.0.as_encoded_bytes().utf8_chunks() {
            for c in chunk.valid().chars() {
                if room == 0 {
                    return f.write_char('…');
                }
                room -= 1;
                if is_hidden(c) || c == '\\' {
                    write!(f, "{}", c.escape_debug())?;
                } else {
                    f.write_char(c)?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Whether a terminal would act on the character, or show nothing of it.
fn is_hidden(c: char) -> bool {
    // `Debug` for a string knows what is printable, marks that combine with the letter before them included.
    let mut after_a_letter = [b'a'; 5];
    let end = 1 + c.encode_utf8(&mut after_a_letter[1..]).len();
    let printable = str::from_utf8(&after_a_letter[..end]).is_ok_and(|text| text.escape_debug().count() == 2);
    !printable && !matches!(c, '\'' | '"' | '\\')
}

/// A message that is about to be printed: what slipped through into it, in a library's words for instance, does no harm.
/// Line breaks stay.
pub(crate) fn harmless(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for c in message.chars() {
        if c != '\n' && is_hidden(c) {
            text.extend(c.escape_debug());
        } else {
            text.push(c);
        }
    }
    text
}

/// A value as JSON, to be printed: serde escapes no more than it must, and here all is escaped that would be hidden.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Failure::Failed(format!("no JSON: {error}")))?;
    let mut text = String::with_capacity(json.len() + 1);
    // Outside of strings nothing is hidden but line breaks.
    for c in json.chars() {
        if c != '\n' && is_hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                text += &format!("\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn what_a_terminal_would_act_on_is_escaped_and_the_rest_is_not() {
        for (name, text) in [
            ("model.layers.0/weight (\"x\", 'y') é ж 漢 🦀", "model.layers.0/weight (\"x\", 'y') é ж 漢 🦀"),
            ("cafe\u{301} नमस्ते", "cafe\u{301} नमस्ते"),
            ("\u{1b}[31mred\u{7}", "\\u{1b}[31mred\\u{7}"),
            ("a\nb\r\tc\0", "a\\nb\\r\\tc\\0"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            ("\u{202e}gpj.exe \u{200b}\u{2028}\u{feff}", "\\u{202e}gpj.exe \\u{200b}\\u{2028}\\u{feff}"),
            ("back\\slash", "back\\\\slash"),
        ] {
            assert_eq!(shown(name).to_string(), text);
        }
        assert_eq!(shown(OsStr::from_bytes(b"a\xff\xfe\xc3")).to_string(), "a\\xff\\xfe\\xc3");
        assert_eq!(shown(&"x".repeat(5000)).to_string(), "x".repeat(4096) + "…");
    }

    #[test]
    fn messages_keep_their_lines_and_lose_what_is_hidden() {
        assert_eq!(harmless("it's \"é\":\n  \u{1b}[2J C:\\x\n"), "it's \"é\":\n  \\u{1b}[2J C:\\x\n");
    }

    proptest! {
        #[test]
        fn no_name_and_no_message_shows_a_control_character(bytes in prop::collection::vec(any::<u8>(), 0..100), text in ".*") {
            prop_assert!(!shown(OsStr::from_bytes(&bytes)).to_string().contains(char::is_control));
            prop_assert!(!shown(&text).to_string().contains(char::is_control));
            prop_assert!(!harmless(&text).contains(|c: char| c.is_control() && c != '\n'));
        }

        #[test]
        fn json_stays_the_same_json(text in "(.|\u{9b}|\u{202e}|\u{e0001}|\n)*") {
            let printed = json(&[&text]).ok().unwrap();
            prop_assert!(!printed.contains(|c: char| c.is_control() && c != '\n'));
            prop_assert_eq!(serde_json::from_str::<[String; 1]>(&printed).unwrap(), [text]);
        }
    }
}
