// Shows tables, as blocks of labelled values on a phone, and saves them as CSV files. A column is [heading, kind, shown, raw, act]: "shown"
// is the text of a row, "raw" its value in a file if that differs, and "act" returns what a click on the cell does, if anything.
"use strict";
const tables = (() => {
  const MOST = 100; // rows that are shown; the file has all
  const MOST_ON_PHONE = 12;

  // A spreadsheet evaluates a text that begins with one of these characters, also after blanks. It does not after an apostrophe.
  const FORMULA = /^[\s\p{C}]*[=+\-@＝＋－＠]/u;
  const quoted = (words) => `"${words.replace(/"/g, '""')}"`;
  function field(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const words = text.visible(value);
    return quoted(FORMULA.test(value) || FORMULA.test(words) ? `'${words}` : words);
  }
  // The byte order mark is what makes spreadsheets read UTF-8.
  const csv = (rows, columns) => "\ufeff" + [columns.map(([heading]) => field(heading)), ...rows.map((row) => columns.map(([, , shown, raw]) => field((raw ?? shown)(row))))]
    .map((fields) => fields.join(",")).join("\r\n") + "\r\n";

  function save(id, rows, columns) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(rows, columns)], { type: "text/csv" }));
    link.download = `sbus-${id}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000); // a browser can ask where to save first
  }

  function element(name, className, words) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (words !== undefined) made.textContent = words;
    return made;
  }
  function button(className, words, act) {
    const made = element("button", className, words);
    made.type = "button";
    made.addEventListener("click", act);
    return made;
  }

  // A phone omits cells without a value, and zeros of columns made by number(). A name can be "0" or "–".
  function cell(row, [heading, kind, shown, raw, act]) {
    const value = shown(row);
    const isVoid = value === null || value === undefined || (kind === "number" && raw && !raw(row));
    const words = text.visible(value ?? "–");
    const made = element("td", [kind, isVoid ? "void" : ""].filter(Boolean).join(" "));
    made.dataset.label = heading;
    const does = act?.(row);
    made.append(does ? button("link", words, does) : words);
    return made;
  }

  // Show rows in the box with an id; "omitted" is the number of rows that are not in the page.
  function show(id, rows, columns, omitted = 0) {
    const box = document.getElementById(id);
    const tools = box.previousElementSibling?.classList.contains("tools") ? box.previousElementSibling : element("p", "tools");
    box.before(tools);
    box.classList.remove("all");
    tools.replaceChildren();
    if (!rows.length) { box.replaceChildren(element("p", "none", "No data.")); return; }
    const table = element("table");
    const head = table.createTHead().insertRow();
    for (const [heading, kind] of columns) head.append(element("th", kind, heading));
    const body = table.createTBody();
    rows.slice(0, MOST).forEach((row, number) => {
      const line = body.insertRow();
      if (number >= MOST_ON_PHONE) line.className = "extra";
      line.append(...columns.map((column) => cell(row, column)));
    });
    box.replaceChildren(table);
    tools.append(button("small", "Save as CSV", () => save(id, rows, columns)), element("span", "faint", text.many(rows.length, "row")), element("span", "faint phone", "Each block is a row. Zeros and missing values are omitted."));
    if (rows.length > MOST_ON_PHONE) {
      const more = button("small phone", `Show ${text.many(Math.min(rows.length, MOST) - MOST_ON_PHONE, "more row")}`, () => { box.classList.add("all"); more.remove(); });
      box.append(more);
    }
    if (rows.length > MOST) box.append(element("p", "faint", `and ${text.many(rows.length - MOST, "more row")}, which the CSV file contains`));
    if (omitted) box.append(element("p", "faint", `and ${text.many(omitted, "more row")}, which the page does not contain`));
  }

  // A column of numbers: "get" returns the number of a row, and "shown" its text.
  const number = (heading, get, shown = text.count) => [heading, "number", (row) => shown(get(row)), get];
  return { show, number, csv, element };
})();
