// Tables with columns { label, text(row), kind, isAlarm(row) }. The cells are only text.

import { element } from "./text.js";

export class Table {
  #body;
  #columns;

  constructor(table, columns) {
    this.#columns = columns;
    const head = document.createElement("tr");
    for (const column of columns) {
      const cell = element("th", column.label, column.kind ?? "");
      cell.scope = "col";
      head.append(cell);
    }
    table.tHead.replaceChildren(head);
    this.#body = table.tBodies[0];
  }

  show(rows) {
    this.#body.replaceChildren(...rows.map((row) => this.#row(row)));
  }

  #row(row) {
    const made = document.createElement("tr");
    for (const column of this.#columns) {
      const cell = element("td", column.text(row), column.kind ?? "");
      cell.dataset.label = column.label;
      if (column.isAlarm?.(row)) {
        cell.classList.add("alarm");
        made.classList.add("alarm");
      }
      made.append(cell);
    }
    return made;
  }
}

const users = new Map();

// Remember the names of users in a response, for the messages too.
export function learnUsers(response) {
  for (const [uid, name] of Object.entries(response.users ?? {})) users.set(Number(uid), name);
}

export function userName(uid) {
  return typeof uid === "number" ? (users.get(uid) ?? String(uid)) : "-";
}
