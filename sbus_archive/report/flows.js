// Folds the smallest publishers, keys and recipients of a diagram into others, until it has few enough links.
"use strict";
const flows = (() => {
  const KINDS = ["from", "key", "to"];
  const OTHERS = "others";

  // The links of rows {from, key, to, value} with each end mapped by "at": publisher to key, and key to recipient.
  function linksOf(rows, at) {
    const links = new Map();
    const add = (from, to, value, key) => {
      const id = `${from} ${to}`;
      const link = links.get(id) ?? links.set(id, { from, to, value: 0, key }).get(id);
      link.value += value;
    };
    for (const row of rows) {
      const [from, key, to] = KINDS.map((kind) => `${kind}:${at(kind, row[kind])}`);
      add(from, key, row.value, at("key", row.key));
      add(key, to, row.value, at("key", row.key));
    }
    return links;
  }

  // The smallest end that is not yet others.
  function smallest(rows, folded) {
    const sums = new Map();
    for (const row of rows) {
      for (const kind of KINDS) {
        if (folded[kind].has(row[kind])) continue;
        const id = `${kind}:${row[kind]}`;
        const end = sums.get(id) ?? sums.set(id, { kind, number: row[kind], value: 0 }).get(id);
        end.value += row.value;
      }
    }
    return [...sums.values()].reduce((least, end) => (least === null || end.value < least.value ? end : least), null);
  }

  // Return at most "most" links, the number of all links, and how many of these are folded. "others" has the number of all others of a kind.
  function fold(rows, most, others) {
    const folded = Object.fromEntries(KINDS.map((kind) => [kind, new Set([others[kind]])]));
    const at = (kind, number) => (folded[kind].has(number) ? OTHERS : number);
    const all = linksOf(rows, (kind, number) => (number === others[kind] ? OTHERS : number));
    let links = all;
    while (links.size > most) {
      const end = smallest(rows, folded);
      folded[end.kind].add(end.number);
      links = linksOf(rows, at);
    }
    const isFolded = (name) => { const [kind, number] = name.split(":"); return number !== OTHERS && folded[kind].has(Number(number)); };
    return { links: [...links.values()], total: all.size, folded: [...all.values()].filter((link) => isFolded(link.from) || isFolded(link.to)).length };
  }
  return { fold, OTHERS };
})();
