// Draws charts: visible ones at once, the others one at a time when the browser is idle. The chart library is compressed in #library, to a
// third of its size; the parts of the page without charts appear before it is uncompressed.
"use strict";
const charts = (() => {
  const waiting = new Map(); // by box: the chart to draw
  let isReady = false;
  let isBroken = false;
  let isIdleAsked = false;

  const isInSight = (box) => {
    const place = box.getBoundingClientRect();
    return place.bottom >= 0 && place.top <= innerHeight;
  };
  const whenIdle = (act) => (window.requestIdleCallback ? requestIdleCallback(act, { timeout: 1000 }) : setTimeout(act, 20));

  function drawOne(box) {
    const { traces, layout } = waiting.get(box);
    waiting.delete(box);
    if (!box.classList.contains("js-plotly-plot")) box.replaceChildren();
    const paper = document.documentElement.dataset.paper ? { width: box.clientWidth } : {};
    Plotly.react(box, traces, { ...layout, ...paper }, { responsive: true, displayModeBar: false });
  }

  // data-drawn is set when all visible charts are drawn, data-settled when all charts are.
  function settle() {
    const root = document.documentElement;
    root.dataset.drawn = "yes";
    if (!waiting.size) { root.dataset.settled = "yes"; return; }
    if (isIdleAsked) return;
    isIdleAsked = true;
    whenIdle(() => {
      isIdleAsked = false;
      const [next] = [...waiting.keys()].sort((a, b) => isInSight(b) - isInSight(a));
      if (next) drawOne(next);
      settle();
    });
  }

  // Show a chart in a box, replacing its content.
  function show(box, traces, layout) {
    box.style.minHeight = `${layout.height}px`; // so that nothing moves when it appears
    waiting.set(box, { traces, layout });
    delete document.documentElement.dataset.settled;
  }

  // Show other content instead of a chart.
  function clear(box, content) {
    waiting.delete(box);
    box.style.minHeight = "";
    if (box.classList.contains("js-plotly-plot")) Plotly.purge(box);
    box.replaceChildren(content);
  }

  // Draw new charts that are visible; the others follow.
  function flush() {
    if (isBroken) {
      for (const box of [...waiting.keys()]) clear(box, "This browser is too old to draw the charts. The tables are complete.");
    } else if (!isReady) {
      return;
    }
    for (const box of [...waiting.keys()].filter(isInSight)) drawOne(box);
    settle();
  }

  async function unpack() {
    const text = atob(document.getElementById("library").textContent);
    const packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i += 1) packed[i] = text.charCodeAt(i);
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script); // it runs here, if the page's policy allows its checksum
    isReady = true;
    flush();
  }

  // Forget what is drawn, so that the next charts get the size of their boxes.
  function restart() {
    for (const box of document.querySelectorAll(".js-plotly-plot")) { Plotly.purge(box); box.classList.remove("js-plotly-plot"); }
  }
  // Draw all charts now.
  function finish() {
    if (isReady) { [...waiting.keys()].forEach(drawOne); settle(); }
  }

  const failed = () => { isBroken = true; flush(); };
  // After the first frame, so that numbers and lists are visible while the library is uncompressed.
  const start = () => requestAnimationFrame(() => setTimeout(() => unpack().catch(failed)));
  return { show, clear, flush, restart, finish, start };
})();
