// The tiles at the top: numbers of the period, their rates, and how they changed since the periods before. The rules are in sbusctl(1).
"use strict";
const tiles = (() => {
  const TILES = [
    { name: "messages", words: "messages", section: "traffic-section", shown: text.compact },
    { name: "bytes", words: "payload", section: "traffic-section", shown: text.bytes },
    { name: "deliveries", words: "deliveries", section: "flows-section", shown: text.compact },
    { name: "users", words: "users", section: "users-section", shown: text.count },
    { name: "calls", words: "calls", section: "calls-section", shown: text.compact },
    { name: "p99", words: "p99 call latency", section: "latency-section", shown: text.micros },
    { name: "failed", words: "failed calls", section: "calls-section", shown: text.compact, limit: 0.01, of: "calls", whole: (m) => m.calls },
    { name: "lost", words: "messages lost", section: "losses-section", shown: text.compact, limit: 0.001, of: "deliveries", whole: (m) => m.deliveries + m.lost },
    { name: "refused", words: "refusals", section: "refusals-section", shown: text.compact, limit: 0.01, of: "messages", whole: (m) => m.messages + m.refused },
  ];
  const NAMES = { day: "day before", week: "week before" };

  const rate = (tile, numbers) => (numbers[tile.name] ? numbers[tile.name] / Math.max(numbers[tile.name], tile.whole(numbers)) : 0);

  // Small differences are noise. Counts are compared, as the periods have the same length.
  function isWorse(tile, now, then) {
    if (now === null || then === null) return false;
    if (tile.name === "p99") return now - then >= 1000 && now >= then * 1.5;
    return tile.limit !== undefined && now - then >= 10 && now >= then * 1.1;
  }

  // The change since then, absolute and relative.
  function change(tile, now, then) {
    if (now === null || then === null) return "no data then";
    if (now === then) return "no change";
    const sign = now > then ? "+" : "−";
    const relative = then > 0 ? text.percent(Math.abs(now - then) / then) : "";
    return `${sign}${tile.shown(Math.abs(now - then))} (${relative ? sign + relative : `was ${tile.shown(0)}`})`;
  }

  // The reasons why a number is red; none if it is not.
  function alarms(tile, now, before) {
    const found = [];
    if (tile.limit !== undefined && rate(tile, now) > tile.limit) found.push(`above ${text.percent(tile.limit)} of ${tile.of}`);
    for (const { name, numbers } of before) if (numbers && isWorse(tile, now[tile.name], numbers[tile.name])) found.push(`more than the ${NAMES[name]}`);
    return found;
  }

  // Show the numbers of now, and of the periods before: pairs of name and numbers, null without data.
  function show(box, now, before) {
    box.replaceChildren(...TILES.map((tile) => {
      const reasons = alarms(tile, now, before);
      const link = tables.element("a", "tile");
      link.href = `#${tile.section}`;
      link.append(tables.element("b", reasons.length ? "alarm" : "", tile.shown(now[tile.name])), tables.element("span", "faint", tile.words));
      if (tile.limit !== undefined && now[tile.name]) link.append(tables.element("span", "change", `${text.percent(rate(tile, now))} of ${tile.of}`));
      for (const { name, numbers } of before) {
        const line = tables.element("span", numbers && isWorse(tile, now[tile.name], numbers[tile.name]) ? "change alarm" : "change");
        line.append(tables.element("i", "", NAMES[name]), ` ${change(tile, now[tile.name], numbers ? numbers[tile.name] : null)}`);
        link.append(line);
      }
      if (reasons.length) link.append(tables.element("span", "change alarm", reasons.join("; ")));
      return link;
    }));
  }

  // What the tiles are compared with.
  function note(data) {
    if (!data.covers.period) return "";
    if (data.hours.length > 168) return "The period is longer than a week, so it is not compared with earlier ones.";
    if (!data.before.length) return "";
    const hours = text.many(data.hours.length, "hour");
    const lines = data.before.map(({ name, from, to, there }) => {
      const gaps = !there ? ": no data then" : there < data.hours.length ? `: the tables have ${text.count(there)} of ${hours}` : "";
      return `${NAMES[name]}: ${text.utc(from)} to ${text.utc(to)} UTC${gaps}`;
    });
    const last = data.covers.period[1];
    const isShort = data.hours.to - last > 300000 ? ` The last hour ends at ${text.utc(last)}; the hours before are whole.` : "";
    const red = "Red is above the stated rate, or at least 10 and 10 % more than before (p99: 1 ms and 50 %).";
    return `Compared with the same ${hours} of the ${lines.join(", and of the ")}.${isShort} ${red}`;
  }
  return { show, note, alarms, change, TILES };
})();
