// Texts for people: numbers with units, times in UTC, and texts from the bus with visible control characters.
"use strict";
const text = (() => {
  // Also the characters that reorder other text.
  const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]/gu;
  const visible = (words) => String(words).replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
  const short = (words, most = 34) => {
    const points = [...visible(words)];
    return points.length <= most ? points.join("") : points.slice(0, most - 9).join("") + "…" + points.slice(-8).join("");
  };
  const harmless = (words) => words.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const label = (words, most) => harmless(short(words, most)) || "(empty)";

  const count = (n) => (n ?? 0).toLocaleString("en-US");
  const many = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
  const scaled = (n, step, units) => {
    let position = 0;
    while (n >= step && position < units.length - 1) { n /= step; position += 1; }
    return (n >= 100 || position === 0 ? Math.round(n) : Number(n.toPrecision(3))) + units[position];
  };
  const bytes = (n) => scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
  const compact = (n) => scaled(n, 1000, ["", " k", " M", " G"]);
  const micros = (n) => (n == null ? "–" : scaled(n, 1000, [" µs", " ms", " s"]));
  const duration = (us) => {
    const [divisor, unit] = us < 12e7 ? [1e6, "s"] : us < 72e8 ? [6e7, "min"] : us < 1728e8 ? [36e8, "h"] : [864e8, "d"];
    return `${(us / divisor).toFixed(unit === "s" ? 0 : 1).replace(/\.0$/, "")} ${unit}`;
  };
  // Two significant digits; a rate of a few in a million is not zero.
  const percent = (share) => {
    const n = share * 100;
    return n > 0 && n < 0.001 ? "<\u00a00.001\u00a0%" : `${n >= 10 ? count(Math.round(n)) : Number(n.toPrecision(2))}\u00a0%`;
  };
  const utc = (ms) => new Date(ms).toISOString().slice(0, 16).replace("T", " ");
  return { visible, short, label, count, many, bytes, compact, micros, duration, percent, utc };
})();
