// The charts of a report, drawn by ECharts. They follow each other: what is clicked keeps its colour in all of them.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const PALE = "#d4d6da", BLUE = "#4e79a7";
const charts = [];

// ---- a page that is written again and again, until its writer ends or is killed --------------------------------------

const every = 1000 * document.documentElement.dataset.every, written = new Date(document.lastModified);
if (every && Date.now() - written > 10 * every + 60000) {
  const note = Object.assign(document.createElement("p"), {className: "note"});
  note.textContent = `This page has not been written anew since ${written.toLocaleString()}, and does not load itself ` +
    "anew any more.";
  document.querySelector("h1").after(note);
} else if (every) {
  setTimeout(() => location.reload(), every);
}

// ---- what a reader has chosen, kept when the page is loaded anew -----------------------------------------------------

const KEY = "fleet " + location.pathname;
const kept = (() => { try { return JSON.parse(sessionStorage.getItem(KEY)) || {}; } catch { return {}; } })();
const chosen = new Set(kept.chosen), sorted = kept.sorted || {};

addEventListener("pagehide", () => {
  const open = [...document.querySelectorAll("details")].map(one => one.open);
  try { sessionStorage.setItem(KEY, JSON.stringify({chosen: [...chosen], sorted, open, y: scrollY})); } catch { }
});

const name = who => data.networks[who];
const ownColour = who => `hsl(${Math.round(who * 137.5 % 360)}, 55%, ${45 + who % 3 * 7}%)`;
const isChosen = who => chosen.has(name(who));

// The colour of a network, or that of the others while some are chosen.
const colour = (who, otherwise) => !chosen.size ? otherwise : isChosen(who) ? ownColour(who) : PALE;
const opacity = (who, otherwise) => !chosen.size ? otherwise : isChosen(who) ? 1 : otherwise / 4;
const rank = who => !chosen.size || !isChosen(who) ? 0 : 1;  // those that are chosen lie on top

function toggle(network) {
  if (!chosen.delete(network)) chosen.add(network);
  follow();
}

function follow() {
  charts.forEach(chart => chart.draw());
  document.querySelectorAll("tr[data-network]").forEach(row => {
    const who = data.networks.indexOf(row.dataset.network);
    row.classList.toggle("chosen", chosen.has(row.dataset.network));
    row.style.setProperty("--own", chosen.has(row.dataset.network) ? ownColour(who) : "transparent");
  });
  legend();
}

function legend() {
  const box = document.getElementById("legend");
  if (!box) return;
  const shown = chosen.size ? [...chosen].map(one => data.networks.indexOf(one)).filter(who => who >= 0) : data.best;
  box.replaceChildren(...shown.map(who => {
    const item = document.createElement("button"), mark = document.createElement("i");
    mark.style.background = ownColour(who);
    item.append(mark, name(who));
    item.onclick = () => toggle(name(who));
    return item;
  }));
  if (chosen.size) {
    const all = document.createElement("button");
    all.textContent = "show all";
    all.onclick = () => { chosen.clear(); follow(); };
    box.append(all);
  }
}

// ---- a chart, and what is said where the pointer is ------------------------------------------------------------------

const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";

function say(hit, event) {
  tip.style.display = hit ? "block" : "none";
  if (!hit) return;
  tip.textContent = hit.said;
  tip.style.left = Math.min(event.pageX + 14, scrollX + innerWidth - tip.offsetWidth - 20) + "px";
  tip.style.top = event.pageY + 14 + "px";
}

// Args: option() says how it looks now; hits, each {who, said}, are its items, or points if they have x and y.
function chart(box, height, option, hits) {
  if (!box) return;
  box.style.height = height + "px";
  const drawn = echarts.init(box);
  let pixels = null, lit = null;
  const one = {draw() {
    drawn.setOption({animation: false, ...option()}, {replaceMerge: "series"});
    pixels = null;
  }};
  const pointed = (hit, event) => {
    drawn.getZr().setCursorStyle(hit && hit.who !== null ? "pointer" : "default");
    say(hit, event);
  };
  const clicked = hit => { if (hit && hit.who !== null) toggle(name(hit.who)); };
  if (hits.length && hits[0].x !== undefined) {
    const nearest = event => {
      pixels = pixels || hits.map(hit => drawn.convertToPixel({gridIndex: 0}, [hit.x, hit.y]));
      let best = null, least = 25 * 25;
      pixels.forEach(([x, y], place) => {
        const far = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
        if (far < least) { least = far; best = hits[place]; }
      });
      return best;
    };
    const light = hit => {
      if (lit === hit) return;
      if (lit) drawn.dispatchAction({type: "downplay", seriesIndex: lit.series, dataIndex: lit.place});
      lit = hit;
      if (hit) drawn.dispatchAction({type: "highlight", seriesIndex: hit.series, dataIndex: hit.place});
    };
    drawn.getZr().on("mousemove", event => { const hit = nearest(event); light(hit); pointed(hit, event.event); });
    drawn.getZr().on("click", event => clicked(nearest(event)));
    drawn.getZr().on("globalout", () => { light(null); say(null); });
  } else {
    drawn.on("mousemove", item => pointed(hits[item.dataIndex], item.event.event));
    drawn.on("mouseout", () => say(null));
    drawn.on("click", item => clicked(hits[item.dataIndex]));
  }
  addEventListener("resize", () => { drawn.resize(); pixels = null; });
  charts.push(one);  // drawn once all are there
}

const short = value => typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value);
const titled = text => ({text, left: 44, top: 2, textStyle: {fontSize: 12, fontWeight: "normal", color: "#444"}});
const GRID = {left: 56, right: 20, top: 30, bottom: 30};
const LIGHT = {splitLine: {lineStyle: {color: "#ececec"}}, axisLine: {onZero: false, lineStyle: {color: "#999"}}};
const box = (id, kind = "chart") => {
  const place = document.getElementById(id);
  return place && place.appendChild(Object.assign(document.createElement("div"), {className: kind}));
};

// ---- how networks learned --------------------------------------------------------------------------------------------

const places = new Map(data.best.map((who, place) => [who, place]));

data.curves.forEach(({title, lines}) => {
  const hits = lines.flatMap(([who, epochs, values], series) => values.map((value, place) => ({
    who, series, place, x: epochs[place], y: value, said: `${name(who)}: epoch ${epochs[place]}, ${title} ${short(value)}`,
  })).filter(hit => hit.y !== null));
  chart(box("curves", "chart half"), 270, () => ({
    title: titled(title), grid: GRID,
    xAxis: {type: "value", min: "dataMin", max: "dataMax", minInterval: 1, ...LIGHT},
    yAxis: {type: "value", scale: true, ...LIGHT},
    series: lines.map(([who, epochs, values]) => {
      const best = places.has(who), stroke = colour(who, best ? ownColour(who) : PALE);
      return {type: "line", data: epochs.map((epoch, place) => [epoch, values[place]]), silent: true,
              showSymbol: epochs.length === 1, symbolSize: 5, itemStyle: {color: stroke},
              lineStyle: {color: stroke, width: stroke === PALE ? 1 : 1.8}, emphasis: {lineStyle: {width: 3.5}},
              z: 2 + rank(who) * 2 + (best ? 1 : 0)};
    }),
  }), hits);
});

// ---- who had which device --------------------------------------------------------------------------------------------

function timeline(id, {unit, devices, seconds, bars}) {
  const rows = new Map(devices.map((device, row) => [device, row]));
  const row = Math.max(3, Math.min(18, 420 / devices.length));
  const items = bars.filter(bar => rows.has(bar[1]));
  chart(box(id), row * devices.length + 76, () => ({
    grid: {left: 44, right: 20, top: 8, bottom: 62},
    xAxis: {type: "value", min: 0, max: seconds, axisLabel: {formatter: "{value} s", showMaxLabel: false}, ...LIGHT},
    yAxis: {type: "category", data: devices, inverse: true, axisTick: {show: false}, axisLine: {show: false}},
    dataZoom: [{type: "slider", bottom: 6, height: 18, filterMode: "weakFilter", showDataShadow: false,
                labelFormatter: value => `${Math.round(value)} s`}],
    series: [{type: "custom", clip: true, dimensions: ["begin", "device", "end"],
      encode: {x: [0, 2], y: 1}, data: items.map(([, device, begin, end]) => [begin, rows.get(device), end]),
      renderItem(params, api) {
        const [who, , , , , busy] = items[params.dataIndex], crowd = busy !== null;
        const [x, y] = api.coord([api.value(0), api.value(1)]), [end] = api.coord([api.value(2), api.value(1)]);
        const width = Math.max(end - x, 0.4), high = row - 0.6, top = y - high / 2;
        const label = !crowd && row >= 9 && width > 6 * name(who).length + 8;
        return {type: "group", children: [
          {type: "rect", shape: {x, y: top, width, height: high},
           style: {fill: crowd ? "#7d8fa3" : ownColour(who), opacity: crowd ? busy * opacity(-1, 1) : opacity(who, 1)}},
          {type: "rect", shape: {x, y: top, width: crowd ? 0 : 0.8, height: high}, silent: true,
           style: {fill: "#000", opacity: 0.35}},
          ...label ? [{type: "text", silent: true, x: x + 4, y, style: {
            text: name(who), fill: "#fff", font: "10px system-ui, sans-serif", textVerticalAlign: "middle"}}] : [],
        ]};
      }}],
  }), items.map(([who, device, begin, end, said]) => ({
    who, said: `${said}: ${unit} ${device}, ${begin.toFixed(1)} to ${end.toFixed(1)} s`})));
}

Object.entries(data.timelines).forEach(([id, found]) => timeline(id, found));

// ---- a search --------------------------------------------------------------------------------------------------------

const axis = ({log, low, high, choices}) => choices ? {type: "category", data: choices, ...LIGHT}
  : {type: log ? "log" : "value", min: low, max: high, ...LIGHT};
const shown = (one, value) => value === null ? "none" : one.choices ? one.choices[value] : short(value);

data.searches.forEach((search, number) => {
  const id = part => `search-${number}-${part}`, {monitor, keys, tried} = search;
  const last = search.found.length ? [[search.seconds, search.found[search.found.length - 1][2]]] : [];
  const value = {type: "value", scale: true, ...LIGHT};

  chart(box(id("best")), 250, () => ({
    title: titled(`best ${monitor} so far, over seconds`), grid: GRID,
    xAxis: {type: "value", min: 0, max: search.seconds, axisLabel: {showMaxLabel: false}, ...LIGHT}, yAxis: value,
    series: [{type: "line", step: "end", silent: true, symbolSize: 6, lineStyle: {color: BLUE},
              itemStyle: {color: BLUE}, data: [...search.found.map(([who, at, found]) => ({
                value: [at, found], itemStyle: {color: colour(who, BLUE)}})), ...last]}],
  }), search.found.map(([who, x, y, epoch], place) => ({
    who, x, y, series: 0, place, said: `${name(who)}: epoch ${epoch}, ${short(y)} after ${x.toFixed(1)} s`})));

  const {objectives, pareto} = search;
  objectives.slice(1).forEach((objective, place) => {
    const at = one => one[2][place + 1], ends = [Math.min(...pareto.map(at)), Math.max(...pareto.map(at))];
    const front = pareto.filter(one => one[1]).sort((one, other) => at(one) - at(other));
    chart(box(id("pareto"), objectives.length > 2 ? "chart half" : "chart"), 280, () => ({
      title: titled(`${objectives[0]} against ${objective}`), grid: GRID, yAxis: value,
      xAxis: {type: ends[0] > 0 && ends[1] > 100 * ends[0] ? "log" : "value", scale: true, ...LIGHT},
      series: [
        {type: "scatter", silent: true, data: pareto.map(one => ({
          value: [at(one), one[2][0]], symbolSize: (one[1] ? 9 : 6) + 3 * rank(one[0]),
          itemStyle: {color: colour(one[0], one[1] ? BLUE : "#c3c6cb"), opacity: opacity(one[0], 0.9)}}))},
        {type: "line", silent: true, symbol: "none", lineStyle: {color: BLUE, width: 1, type: "dashed"}, z: 1,
         data: objectives.length > 2 ? [] : front.map(one => [at(one), one[2][0]])}],
    }), pareto.map((one, number) => ({who: one[0], x: at(one), y: one[2][0], series: 0, place: number,
      said: `${name(one[0])}${one[1] ? ", of the front" : ""}: ` +
        objectives.map((each, place) => `${each} ${short(one[2][place])}`).join(", ")})));
  });

  const told = ([who, status, found, values]) => `${name(who)}, ${status}: ${monitor} ${short(found)}; ` +
    keys.map((key, place) => `${key.name} ${shown(key, values[place])}`).join(", ");
  chart(keys.length > 1 ? box(id("parallel")) : null, 320, () => ({
    parallel: {left: 60, right: 80, top: 40, bottom: 24},
    parallelAxis: [...keys.map((key, dim) => ({dim, name: key.name, ...axis(key), splitLine: {show: false}})),
                   {dim: keys.length, name: monitor, type: "value", scale: true, inverse: !search.larger,
                    splitLine: {show: false}}],
    series: [{type: "parallel", smooth: false, inactiveOpacity: 0.03, data: tried.map(([who, status, found, values]) => ({
      value: [...values.map(one => one === null ? "-" : one), found],
      lineStyle: {color: colour(who, places.has(who) ? ownColour(who) : data.statuses[status] || "#888"),
                  width: rank(who) || places.has(who) ? 2 : 1, opacity: opacity(who, places.has(who) ? 0.9 : 0.35)},
    }))}],
  }), tried.map(one => ({who: one[0], said: told(one)})));

  keys.forEach((key, dim) => {
    const points = tried.filter(one => one[3][dim] !== null);
    chart(box(id("keys"), "chart third"), 240, () => ({
      title: titled(`${monitor} against ${key.name}`), grid: GRID, xAxis: axis(key), yAxis: value,
      series: [{type: "scatter", silent: true, symbolSize: 7, emphasis: {scale: 1.8}, data: points.map(one => ({
        value: [one[3][dim], one[2]], symbolSize: 7 + 4 * rank(one[0]),
        itemStyle: {color: colour(one[0], data.statuses[one[1]] || "#888"), opacity: opacity(one[0], 0.8)}}))}],
    }), points.map((one, place) => ({who: one[0], x: one[3][dim], y: one[2], series: 0, place, said: told(one)})));
  });

  const {rows, epochs} = search.descent, high = Math.max(4, Math.min(16, 640 / rows.length));
  chart(rows.length ? box(id("descent")) : null, high * rows.length + 40, () => ({
    grid: {left: 12, right: 90, top: 6, bottom: 28},
    xAxis: {type: "value", min: 0, max: epochs, minInterval: 1, ...LIGHT},
    yAxis: {type: "value", min: 0, max: rows.length, inverse: true, show: false},
    series: [{type: "custom", dimensions: ["begin", "row", "end"], encode: {x: [0, 2], y: 1},
      data: rows.map(([, begin, end], row) => [begin, row + 0.5, end]),
      renderItem(params, api) {
        const [who, begin, end, parent, inLine] = rows[params.dataIndex];
        const stroke = colour(who, inLine ? BLUE : "#b9b9b9");
        const to = api.coord([end, api.value(1)]), from = api.coord([begin, api.value(1)]);
        const start = parent === null ? [] : [api.coord([begin, parent + 0.5])];
        return {type: "group", children: [
          {type: "polyline", shape: {points: [...start, from, to]}, style: {stroke, lineWidth: 2, fill: "none"}},
          {type: "circle", shape: {cx: to[0], cy: to[1], r: 2.5}, style: {fill: stroke}},
          ...high >= 11 ? [{type: "text", x: to[0] + 6, y: to[1], style: {
            text: name(who), fill: "#555", font: "11px system-ui, sans-serif", textVerticalAlign: "middle"}}] : [],
        ]};
      }}],
  }), rows.map(([who, , , , , said]) => ({who, said})));
});

// ---- tables ----------------------------------------------------------------------------------------------------------

const number = text => text === "" ? -Infinity : Number(text.replace(/ ±.*|[%,]/g, ""));

function sort(table, column, down) {
  const body = table.tBodies[0], rows = [...body.rows], text = row => row.cells[column].textContent;
  const isNumber = rows.every(row => !Number.isNaN(number(text(row))));
  rows.sort((one, other) => isNumber ? number(text(one)) - number(text(other))
    : text(one).localeCompare(text(other), undefined, {numeric: true}));
  body.append(...(down ? rows.reverse() : rows));
  [...table.tHead.rows[0].cells].forEach((cell, place) =>
    cell.setAttribute("aria-sort", place !== column ? "none" : down ? "descending" : "ascending"));
}

document.querySelectorAll("table").forEach((table, place) => {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    cell.tabIndex = 0;
    cell.onclick = () => {
      sorted[place] = [column, cell.getAttribute("aria-sort") === "ascending"];
      sort(table, ...sorted[place]);
    };
    cell.onkeydown = event => { if (event.key === "Enter") cell.onclick(); };
  });
  if (sorted[place] && sorted[place][0] < table.tHead.rows[0].cells.length) sort(table, ...sorted[place]);
});
document.querySelectorAll("tr[data-network]").forEach(row => { row.onclick = () => toggle(row.dataset.network); });

document.querySelectorAll("details").forEach((one, place) => { if ((kept.open || [])[place]) one.open = true; });
follow();
if (kept.y) scrollTo(0, kept.y);
})();
