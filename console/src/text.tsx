// Text of strangers: always text, and nothing in it invisible.

// Control, format (bidi, zero-width), private-use, unpaired surrogates, separators, and blanks that look like nothing.
const INVISIBLE =
  // biome-ignore lint/suspicious/noMisleadingCharacterClass: U+034F is meant by itself
  /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u115f\u1160\u3164\uffa0\u2800\u034f]/gu;

const NAMES: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0" };

function mark(character: string): string {
  return NAMES[character] ?? `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Shows a text with each invisible character named, isolated from the direction of the surrounding text. */
export function Text({ of, keepLines = false }: { of: string; keepLines?: boolean }) {
  const parts = [];
  let end = 0;
  for (const match of of.matchAll(INVISIBLE)) {
    if (keepLines && (match[0] === "\n" || match[0] === "\t")) continue;
    parts.push(of.slice(end, match.index), <span class="mark">{mark(match[0])}</span>);
    end = match.index + match[0].length;
  }
  parts.push(of.slice(end));
  return <bdi>{parts}</bdi>;
}

/** Returns the same text for places that take plain text only, such as a title. */
export function plain(of: string): string {
  return of.replace(INVISIBLE, (character) => `⟨${mark(character)}⟩`);
}
