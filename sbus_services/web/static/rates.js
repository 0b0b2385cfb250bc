// Rates from two lists of connections. No access to the page.

export const RATED = ["received_packets", "received_bytes", "delivered_packets", "delivered_bytes", "lost_packets", "blocked_ms"];

// Return the growth of a counter per second; null if it is unknown, as after a restart of the bus.
export function perSecond(before, after, seconds) {
  if (!(seconds > 0) || typeof before !== "number" || typeof after !== "number" || after < before) return null;
  return (after - before) / seconds;
}

// Return the connections of the response `later` with rates under `<counter>_per_second`. All counters of a new connection grew since `earlier`.
export function withRates(earlier, later) {
  const before = new Map((earlier?.connections ?? []).map((each) => [each.id, each]));
  const seconds = earlier ? later.time - earlier.time : 0;
  return later.connections.map((each) => {
    const first = before.get(each.id);
    const rates = RATED.map((name) => [`${name}_per_second`, perSecond(first ? first[name] : 0, each[name], seconds)]);
    return { ...each, ...Object.fromEntries(rates) };
  });
}

// Return the sum of the known values under `name`; null if none is known.
export function total(rows, name) {
  const known = rows.map((row) => row[name]).filter((value) => typeof value === "number");
  return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
}

// Return the rows with the highest value first, and unknown ones last.
export function sorted(rows, name) {
  const place = (row) => (typeof row[name] === "number" ? row[name] : -1);
  return [...rows].sort((a, b) => place(b) - place(a) || a.id - b.id);
}
