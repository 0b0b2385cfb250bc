// Text for people. Everything that comes from the bus reaches the page through these functions and textContent only: it is data.

const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;
const IN_A_PAYLOAD = new Set(["\n", "\t"]);

function escaped(character) {
  const code = character.codePointAt(0);
  if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code - 0xdc00).toString(16)}`; // a byte of a key that is not UTF-8
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return `\\u{${code.toString(16)}}`;
}

// Return text with escapes for all characters that are invisible or change the direction of others.
export function visible(text) {
  return String(text).replace(INVISIBLE, escaped);
}

export function visibleLines(text) {
  return String(text).replace(INVISIBLE, (character) => (IN_A_PAYLOAD.has(character) ? character : escaped(character)));
}

// Return bytes in Base64 as hexadecimal digits; null if there are more than `most`, of which the first are returned.
export function hexadecimal(base64, most) {
  const bytes = atob(base64.slice(0, Math.ceil(most / 3) * 4));
  return Array.from(bytes.slice(0, most), (byte) => byte.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
}

export function base64Size(base64) {
  return (base64.length / 4) * 3 - (base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0);
}

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value) {
  return typeof value === "number" && Number.isFinite(value) ? NUMBER.format(value) : "-";
}

export function rate(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "-";
  return value > 0 && value < 10 ? value.toFixed(1) : NUMBER.format(value);
}

export function size(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "-";
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= factor) return `${(value / factor).toFixed(1)} ${unit}`;
  }
  return `${NUMBER.format(value)} B`;
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

export function clock(moment) {
  return moment.toLocaleTimeString("en-GB");
}

export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return "-";
  for (const [unit, factor] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= factor) return `${Math.floor(seconds / factor)} ${unit}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}

// Return a new element with text.
export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}
