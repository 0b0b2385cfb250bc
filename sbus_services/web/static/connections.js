// The table of connections.

import { Polling } from "./polling.js";
import { Table, learnUsers, userName } from "./table.js";
import { count, duration, plural, size, visible } from "./text.js";

export const NAMED = [
  { label: "Connection", text: (row) => String(row.id) },
  { label: "User", text: (row) => visible(userName(row.uid)) },
  { label: "Name", text: (row) => visible(row.name || "-") },
  { label: "Command", text: (row) => visible(row.command ?? "-") },
  { label: "PID", kind: "number", text: (row) => String(row.pid ?? "-") },
];

const COLUMNS = [
  ...NAMED,
  { label: "Age", kind: "number", text: (row) => duration(Date.now() / 1000 - row.since) },
  { label: "Patterns", kind: "number", text: (row) => count(row.subscriptions) },
  { label: "Sent", kind: "number", text: (row) => count(row.received_packets) },
  { label: "Received", kind: "number", text: (row) => count(row.delivered_packets) },
  { label: "Queued", kind: "number", text: (row) => `${count(row.queued_packets)} / ${size(row.queued_bytes)}` },
  { label: "Lost", kind: "number", text: (row) => count(row.lost_packets), isAlarm: (row) => row.lost_packets > 0 },
  { label: "Refused", kind: "number", text: (row) => count(row.refused_packets), isAlarm: (row) => row.refused_packets > 0 },
];

export class Connections {
  constructor(session) {
    const panel = document.getElementById("connections");
    const table = new Table(panel.querySelector("table"), COLUMNS);
    this.polling = new Polling(panel, async () => {
      const response = await session.request("connections");
      learnUsers(response);
      table.show(response.connections);
      document.getElementById("connections-counts").textContent = summary(response);
    });
  }
}

export function summary(response) {
  const parts = [plural(response.connections.length, "connection")];
  if (response.more) parts.push("and more that are not listed");
  if (response.hidden) parts.push(`${plural(response.hidden, "connection")} of other users`);
  return parts.join(" · ");
}
