// The tiles at the top: numbers of the period, their rates, and how they changed since the periods before. The rules are in sbusctl(1).
"use strict";
const tiles = (() => {
  const TILES = [
    { name: "messages", words: "messages", section: "traffic-section", shown: text.compact },
    { name: "bytes", words: "payload", section: "traffic-section", shown: text.bytes },
    { name: "deliveries", words: "deliveries", section: "flows-section", shown: text.compact },
    // Not compared: the page distinguishes the users of this period only.
    { name: "users", words: "users", section: "users-section", shown: text.count, isAlone: true },
    { name: "calls", words: "calls", section: "calls-section", shown: text.compact },
    { name: "p99", words: "p99 call latency", section: "latency-section", shown: text.micros },
    { name: "failed", words: "failed calls", section: "calls-section", shown: text.compact, limit: 0.01, of: "calls", whole: (m) => m.calls },
    { name: "lost", words: "messages lost", section: "losses-section", shown: text.compact, limit: 0.001, of: "deliveries", whole: (m) => (m.isOneUser ? null : m.deliveries + m.lost) },
    { name: "refused", words: "refusals", section: "refusals-section", shown: text.compact, limit: 0.01, of: "messages", whole: (m) => m.messages + m.refused },
  ];
  const NAMES = { day: "day before", week: "week before" };

  // The share of a number in its whole; null without a whole. The losses of one user are those of a recipient, but the deliveries of one user
  // are those of a publisher.
  function rate(tile, numbers) {
    const whole = tile.limit === undefined || !numbers[tile.name] ? null : tile.whole(numbers);
    return whole === null ? null : numbers[tile.name] / Math.max(numbers[tile.name], whole);
  }

  // Small differences are noise. Counts of whole periods are compared, as these have the same length.
  function isWorse(tile, now, period) {
    const then = period.numbers?.[tile.name] ?? null;
    if (tile.isAlone || period.there < period.length || now === null || then === null) return false;
    if (tile.name === "p99") return now - then >= 1000 && now >= then * 1.5;
    return tile.limit !== undefined && now - then >= 10 && now >= then * 1.1;
  }

  // The change since a period, absolute and relative; the number of the period if there is nothing to compare.
  function change(tile, now, period) {
    if (period.numbers === null) return "no data then";
    const then = period.numbers[tile.name];
    if (then === null) return "no calls then"; // only a latency is null
    if (period.there < period.length) return `was ${tile.shown(then)} in ${text.count(period.there)} of ${text.many(period.length, "hour")}`;
    if (now === null) return `was ${tile.shown(then)}`;
    if (now === then) return "no change";
    const sign = now > then ? "+" : "−";
    const relative = then > 0 ? text.percent(Math.abs(now - then) / then) : "";
    return `${sign}${tile.shown(Math.abs(now - then))} (${relative ? sign + relative : `was ${tile.shown(0)}`})`;
  }

  // The reasons why a number is red; none if it is not.
  function alarms(tile, now, before) {
    const found = [];
    if (tile.limit !== undefined && rate(tile, now) > tile.limit) found.push(`above ${text.percent(tile.limit)} of ${tile.of}`);
    for (const period of before) if (isWorse(tile, now[tile.name], period)) found.push(`more than the ${NAMES[period.name]}`);
    return found;
  }

  // Show the numbers of now, and of the periods before: {name, numbers, there, length}. "there" is the number of hours with data of "length";
  // "numbers" is null without any.
  function show(box, now, before) {
    box.replaceChildren(...TILES.map((tile) => {
      const reasons = alarms(tile, now, before);
      const link = tables.element("a", "tile");
      link.href = `#${tile.section}`;
      link.append(tables.element("b", reasons.length ? "alarm" : "", tile.shown(now[tile.name])), tables.element("span", "faint", tile.words));
      const share = rate(tile, now);
      if (share !== null) link.append(tables.element("span", "change", `${text.percent(share)} of ${tile.of}`));
      for (const period of tile.isAlone ? [] : before) {
        const line = tables.element("span", isWorse(tile, now[tile.name], period) ? "change alarm" : "change");
        line.append(tables.element("i", "", NAMES[period.name]), ` ${change(tile, now[tile.name], period)}`);
        link.append(line);
      }
      if (reasons.length) link.append(tables.element("span", "change alarm", reasons.join("; ")));
      return link;
    }));
  }

  // What the tiles are compared with; "before" are the periods as in show().
  function note(data, before, whose) {
    if (!data.covers.period) return "";
    if (data.hours.length > 168) return "The period is longer than a week, so it is not compared with earlier ones.";
    if (!data.before.length) return "";
    const hours = text.many(data.hours.length, "hour");
    const lines = data.before.map(({ name, from, to }, place) => {
      const { there } = before[place];
      const gaps = !there ? ": no data then" : there < data.hours.length ? `: the tables have ${text.count(there)} of ${hours}${whose}` : "";
      return `${NAMES[name]}: ${text.utc(from)} to ${text.utc(to)} UTC${gaps}`;
    });
    const last = data.covers.period[1];
    const isShort = data.hours.to - last > 300000 ? ` The last hour ends at ${text.utc(last)}; the hours before are whole.` : "";
    const red = "Red is above the stated rate, or at least 10 and 10 % more than in a period with all hours (p99: 1 ms and 50 %).";
    return `Compared with the same ${hours} of the ${lines.join(", and of the ")}.${isShort} ${red}`;
  }
  return { show, note, alarms, change, TILES };
})();
