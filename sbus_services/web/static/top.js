// Rates of each connection.

import { NAMED, summary } from "./connections.js";
import { Polling } from "./polling.js";
import { sorted, total, withRates } from "./rates.js";
import { Table, learnUsers } from "./table.js";
import { count, element, rate, size } from "./text.js";

const COLUMNS = [
  ...NAMED,
  { label: "Sent/s", field: "received_packets_per_second", kind: "number", text: (row) => rate(row.received_packets_per_second) },
  { label: "Sent B/s", field: "received_bytes_per_second", kind: "number", text: (row) => size(row.received_bytes_per_second) },
  { label: "Received/s", field: "delivered_packets_per_second", kind: "number", text: (row) => rate(row.delivered_packets_per_second) },
  { label: "Received B/s", field: "delivered_bytes_per_second", kind: "number", text: (row) => size(row.delivered_bytes_per_second) },
  { label: "Queued", field: "queued_packets", kind: "number", text: (row) => count(row.queued_packets) },
  {
    label: "Lost/s",
    field: "lost_packets_per_second",
    kind: "number",
    text: (row) => rate(row.lost_packets_per_second),
    isAlarm: (row) => row.lost_packets_per_second > 0,
  },
  { label: "Blocked ms/s", field: "blocked_ms_per_second", kind: "number", text: (row) => rate(row.blocked_ms_per_second) },
];

const TILES = [
  ["packets sent/s", (rows) => rate(total(rows, "received_packets_per_second"))],
  ["sent/s", (rows) => size(total(rows, "received_bytes_per_second"))],
  ["packets received/s", (rows) => rate(total(rows, "delivered_packets_per_second"))],
  ["received/s", (rows) => size(total(rows, "delivered_bytes_per_second"))],
  ["queued", (rows) => count(total(rows, "queued_packets"))],
  ["lost/s", (rows) => rate(total(rows, "lost_packets_per_second"))],
];

export class Top {
  #earlier = null;

  constructor(session) {
    const panel = document.getElementById("top");
    const sort = document.getElementById("sort");
    for (const { label, field } of COLUMNS) {
      if (field) sort.append(new Option(label, field));
    }
    const table = new Table(panel.querySelector("table"), COLUMNS);
    let rows = [];
    const show = () => table.show(sorted(rows, sort.value));
    sort.addEventListener("change", show);
    this.polling = new Polling(panel, async () => {
      const response = await session.request("connections");
      learnUsers(response);
      rows = withRates(this.#earlier, response);
      this.#earlier = response;
      show();
      document.getElementById("top-counts").textContent = summary(response);
      document.getElementById("tiles").replaceChildren(...TILES.map(([label, value]) => tile(label, value(rows))));
    });
  }

  // Counters of another bus or of an earlier time say nothing about the present.
  reset() {
    this.#earlier = null;
  }
}

function tile(label, value) {
  const made = element("div", "", "tile");
  made.append(element("b", value), element("span", label, "faint"));
  return made;
}
