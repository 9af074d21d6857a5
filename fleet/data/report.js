// The charts of a report, drawn by ECharts. Clicking a network highlights it in all charts.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const PALE = "#d4d6da", BLUE = "#4e79a7";
const charts = [];

// ---- reload a page that is rewritten until the run ends -------------------------------------------------------------

const every = 1000 * document.documentElement.dataset.every, written = new Date(document.lastModified);
if (every && Date.now() - written > 10 * every + 60000) {
  const note = Object.assign(document.createElement("p"), {className: "note"});
  note.textContent = `This page was last written at ${written.toLocaleString()}, and has stopped reloading.`;
  document.querySelector("h1").after(note);
} else if (every) {
  setTimeout(() => location.reload(), every);
}

// ---- the selection, restored when the page reloads -------------------------------------------------------------------

const KEY = "fleet " + location.pathname;
const saved = (() => { try { return JSON.parse(sessionStorage.getItem(KEY)) || {}; } catch { return {}; } })();
const selected = new Set(saved.chosen), sorted = saved.sorted || {};

addEventListener("pagehide", () => {
  const open = [...document.querySelectorAll("details")].map(element => element.open);
  try { sessionStorage.setItem(KEY, JSON.stringify({chosen: [...selected], sorted, open, y: scrollY})); } catch { }
});

const name = network => data.networks[network];
const ownColor = network => `hsl(${Math.round(network * 137.5 % 360)}, 55%, ${45 + network % 3 * 7}%)`;
const isSelected = network => selected.has(name(network));

// The color of a network: its own if it is selected, pale while only others are.
const color = (network, otherwise) => !selected.size ? otherwise : isSelected(network) ? ownColor(network) : PALE;
const opacity = (network, otherwise) => !selected.size ? otherwise : isSelected(network) ? 1 : otherwise / 4;
const rank = network => !selected.size || !isSelected(network) ? 0 : 1;  // selected networks are drawn on top

function toggle(network) {
  if (!selected.delete(network)) selected.add(network);
  follow();
}

function follow() {
  charts.forEach(chart => chart.draw());
  document.querySelectorAll("tr[data-network]").forEach(row => {
    const network = data.networks.indexOf(row.dataset.network);
    row.classList.toggle("chosen", selected.has(row.dataset.network));
    row.style.setProperty("--own", selected.has(row.dataset.network) ? ownColor(network) : "transparent");
  });
  legend();
}

function legend() {
  const box = document.getElementById("legend");
  if (!box) return;
  const listed = selected.size ? [...selected].map(network => data.networks.indexOf(network)).filter(index => index >= 0) : data.best;
  box.replaceChildren(...listed.map(network => {
    const item = document.createElement("button"), mark = document.createElement("i");
    mark.style.background = ownColor(network);
    item.append(mark, name(network));
    item.onclick = () => toggle(name(network));
    return item;
  }));
  if (selected.size) {
    const all = document.createElement("button");
    all.textContent = "show all";
    all.onclick = () => { selected.clear(); follow(); };
    box.append(all);
  }
}

// ---- a chart with a tooltip -----------------------------------------------------------------------------------------

const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";

function showTip(hit, event) {
  tip.style.display = hit ? "block" : "none";
  if (!hit) return;
  tip.textContent = hit.label;
  tip.style.left = Math.min(event.pageX + 14, scrollX + innerWidth - tip.offsetWidth - 20) + "px";
  tip.style.top = event.pageY + 14 + "px";
}

// Args: option() returns its current options; hits, each {network, label}, are its items, or points if they have x and y.
function chart(box, height, option, hits) {
  if (!box) return;
  box.style.height = height + "px";
  const drawn = echarts.init(box);
  let pixels = null, highlighted = null;
  const drawable = {draw() {
    drawn.setOption({animation: false, ...option()}, {replaceMerge: "series"});
    pixels = null;
  }};
  const handleHover = (hit, event) => {
    drawn.getZr().setCursorStyle(hit && hit.network !== null ? "pointer" : "default");
    showTip(hit, event);
  };
  const handleClick = hit => { if (hit && hit.network !== null) toggle(name(hit.network)); };
  if (hits.length && hits[0].x !== undefined) {
    const nearest = event => {
      pixels = pixels || hits.map(hit => drawn.convertToPixel({gridIndex: 0}, [hit.x, hit.y]));
      let best = null, minDistance = 25 * 25;
      pixels.forEach(([x, y], index) => {
        const distance = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
        if (distance < minDistance) { minDistance = distance; best = hits[index]; }
      });
      return best;
    };
    const highlight = hit => {
      if (highlighted === hit) return;
      if (highlighted) drawn.dispatchAction({type: "downplay", seriesIndex: highlighted.series, dataIndex: highlighted.index});
      highlighted = hit;
      if (hit) drawn.dispatchAction({type: "highlight", seriesIndex: hit.series, dataIndex: hit.index});
    };
    drawn.getZr().on("mousemove", event => { const hit = nearest(event); highlight(hit); handleHover(hit, event.event); });
    drawn.getZr().on("click", event => handleClick(nearest(event)));
    drawn.getZr().on("globalout", () => { highlight(null); showTip(null); });
  } else {
    drawn.on("mousemove", item => handleHover(hits[item.dataIndex], item.event.event));
    drawn.on("mouseout", () => showTip(null));
    drawn.on("click", item => handleClick(hits[item.dataIndex]));
  }
  addEventListener("resize", () => { drawn.resize(); pixels = null; });
  charts.push(drawable);  // drawn once all have been created
}

const short = value => typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value);
const titled = text => ({text, left: 44, top: 2, textStyle: {fontSize: 12, fontWeight: "normal", color: "#444"}});
const GRID = {left: 56, right: 20, top: 30, bottom: 30};
const LIGHT = {splitLine: {lineStyle: {color: "#ececec"}}, axisLine: {onZero: false, lineStyle: {color: "#999"}}};
const box = (id, kind = "chart") => {
  const index = document.getElementById(id);
  return index && index.appendChild(Object.assign(document.createElement("div"), {className: kind}));
};

// ---- learning curves -------------------------------------------------------------------------------------------------

const bestIndex = new Map(data.best.map((network, index) => [network, index]));

data.curves.forEach(({title, lines}) => {
  const hits = lines.flatMap(([network, epochs, values], series) => values.map((value, index) => ({
    network, series, index, x: epochs[index], y: value, label: `${name(network)}: epoch ${epochs[index]}, ${title} ${short(value)}`,
  })).filter(hit => hit.y !== null));
  chart(box("curves", "chart half"), 270, () => ({
    title: titled(title), grid: GRID,
    xAxis: {type: "value", min: "dataMin", max: "dataMax", minInterval: 1, ...LIGHT},
    yAxis: {type: "value", scale: true, ...LIGHT},
    series: lines.map(([network, epochs, values]) => {
      const best = bestIndex.has(network), stroke = color(network, best ? ownColor(network) : PALE);
      return {type: "line", data: epochs.map((epoch, index) => [epoch, values[index]]), silent: true,
              showSymbol: epochs.length === 1, symbolSize: 5, itemStyle: {color: stroke},
              lineStyle: {color: stroke, width: stroke === PALE ? 1 : 1.8}, emphasis: {lineStyle: {width: 3.5}},
              z: 2 + rank(network) * 2 + (best ? 1 : 0)};
    }),
  }), hits);
});

// ---- networks by device ----------------------------------------------------------------------------------------------

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
        const [network, , , , , busy] = items[params.dataIndex], crowd = busy !== null;
        const [x, y] = api.coord([api.value(0), api.value(1)]), [end] = api.coord([api.value(2), api.value(1)]);
        const width = Math.max(end - x, 0.4), high = row - 0.6, top = y - high / 2;
        const label = !crowd && row >= 9 && width > 6 * name(network).length + 8;
        return {type: "group", children: [
          {type: "rect", shape: {x, y: top, width, height: high},
           style: {fill: crowd ? "#7d8fa3" : ownColor(network), opacity: crowd ? busy * opacity(-1, 1) : opacity(network, 1)}},
          {type: "rect", shape: {x, y: top, width: crowd ? 0 : 0.8, height: high}, silent: true,
           style: {fill: "#000", opacity: 0.35}},
          ...label ? [{type: "text", silent: true, x: x + 4, y, style: {
            text: name(network), fill: "#fff", font: "10px system-ui, sans-serif", textVerticalAlign: "middle"}}] : [],
        ]};
      }}],
  }), items.map(([network, device, begin, end, label]) => ({
    network, label: `${label}: ${unit} ${device}, ${begin.toFixed(1)} to ${end.toFixed(1)} s`})));
}

Object.entries(data.timelines).forEach(([id, content]) => timeline(id, content));

// ---- a search --------------------------------------------------------------------------------------------------------

const axis = ({log, low, high, choices}) => choices ? {type: "category", data: choices, ...LIGHT}
  : {type: log ? "log" : "value", min: low, max: high, ...LIGHT};
const format = (key, value) => value === null ? "none" : key.choices ? key.choices[value] : short(value);

data.searches.forEach((search, number) => {
  const id = part => `search-${number}-${part}`, {monitor, keys, trials} = search;
  const last = search.improvements.length ? [[search.seconds, search.improvements[search.improvements.length - 1][2]]] : [];
  const value = {type: "value", scale: true, ...LIGHT};

  chart(box(id("best")), 250, () => ({
    title: titled(`best ${monitor} so far, by seconds`), grid: GRID,
    xAxis: {type: "value", min: 0, max: search.seconds, axisLabel: {showMaxLabel: false}, ...LIGHT}, yAxis: value,
    series: [{type: "line", step: "end", silent: true, symbolSize: 6, lineStyle: {color: BLUE},
              itemStyle: {color: BLUE}, data: [...search.improvements.map(([network, seconds, best]) => ({
                value: [seconds, best], itemStyle: {color: color(network, BLUE)}})), ...last]}],
  }), search.improvements.map(([network, x, y, epoch], index) => ({
    network, x, y, series: 0, index, label: `${name(network)}: epoch ${epoch}, ${short(y)} after ${x.toFixed(1)} s`})));

  const {objectives, pareto} = search;
  objectives.slice(1).forEach((objective, index) => {
    const at = point => point[2][index + 1], ends = [Math.min(...pareto.map(at)), Math.max(...pareto.map(at))];
    const front = pareto.filter(point => point[1]).sort((point, next) => at(point) - at(next));
    chart(box(id("pareto"), objectives.length > 2 ? "chart half" : "chart"), 280, () => ({
      title: titled(`${objectives[0]} vs. ${objective}`), grid: GRID, yAxis: value,
      xAxis: {type: ends[0] > 0 && ends[1] > 100 * ends[0] ? "log" : "value", scale: true, ...LIGHT},
      series: [
        {type: "scatter", silent: true, data: pareto.map(point => ({
          value: [at(point), point[2][0]], symbolSize: (point[1] ? 9 : 6) + 3 * rank(point[0]),
          itemStyle: {color: color(point[0], point[1] ? BLUE : "#c3c6cb"), opacity: opacity(point[0], 0.9)}}))},
        {type: "line", silent: true, symbol: "none", lineStyle: {color: BLUE, width: 1, type: "dashed"}, z: 1,
         data: objectives.length > 2 ? [] : front.map(point => [at(point), point[2][0]])}],
    }), pareto.map((point, number) => ({network: point[0], x: at(point), y: point[2][0], series: 0, index: number,
      label: `${name(point[0])}${point[1] ? ", on the front" : ""}: ` +
        objectives.map((each, index) => `${each} ${short(point[2][index])}`).join(", ")})));
  });

  const describe = ([network, status, result, values]) => `${name(network)}, ${status}: ${monitor} ${short(result)}; ` +
    keys.map((key, index) => `${key.name} ${format(key, values[index])}`).join(", ");
  chart(keys.length > 1 ? box(id("parallel")) : null, 320, () => ({
    parallel: {left: 60, right: 80, top: 40, bottom: 24},
    parallelAxis: [...keys.map((key, dim) => ({dim, name: key.name, ...axis(key), splitLine: {show: false}})),
                   {dim: keys.length, name: monitor, type: "value", scale: true, inverse: !search.larger,
                    splitLine: {show: false}}],
    series: [{type: "parallel", smooth: false, inactiveOpacity: 0.03, data: trials.map(([network, status, result, values]) => ({
      value: [...values.map(point => point === null ? "-" : point), result],
      lineStyle: {color: color(network, bestIndex.has(network) ? ownColor(network) : data.statuses[status] || "#888"),
                  width: rank(network) || bestIndex.has(network) ? 2 : 1, opacity: opacity(network, bestIndex.has(network) ? 0.9 : 0.35)},
    }))}],
  }), trials.map(point => ({network: point[0], label: describe(point)})));

  keys.forEach((key, dim) => {
    const points = trials.filter(point => point[3][dim] !== null);
    chart(box(id("keys"), "chart third"), 240, () => ({
      title: titled(`${monitor} vs. ${key.name}`), grid: GRID, xAxis: axis(key), yAxis: value,
      series: [{type: "scatter", silent: true, symbolSize: 7, emphasis: {scale: 1.8}, data: points.map(point => ({
        value: [point[3][dim], point[2]], symbolSize: 7 + 4 * rank(point[0]),
        itemStyle: {color: color(point[0], data.statuses[point[1]] || "#888"), opacity: opacity(point[0], 0.8)}}))}],
    }), points.map((point, index) => ({network: point[0], x: point[3][dim], y: point[2], series: 0, index, label: describe(point)})));
  });

  const {rows, epochs} = search.descent, high = Math.max(4, Math.min(16, 640 / rows.length));
  chart(rows.length ? box(id("descent")) : null, high * rows.length + 40, () => ({
    grid: {left: 12, right: 90, top: 6, bottom: 28},
    xAxis: {type: "value", min: 0, max: epochs, minInterval: 1, ...LIGHT},
    yAxis: {type: "value", min: 0, max: rows.length, inverse: true, show: false},
    series: [{type: "custom", dimensions: ["begin", "row", "end"], encode: {x: [0, 2], y: 1},
      data: rows.map(([, begin, end], row) => [begin, row + 0.5, end]),
      renderItem(params, api) {
        const [network, begin, end, parent, inLine] = rows[params.dataIndex];
        const stroke = color(network, inLine ? BLUE : "#b9b9b9");
        const to = api.coord([end, api.value(1)]), from = api.coord([begin, api.value(1)]);
        const start = parent === null ? [] : [api.coord([begin, parent + 0.5])];
        return {type: "group", children: [
          {type: "polyline", shape: {points: [...start, from, to]}, style: {stroke, lineWidth: 2, fill: "none"}},
          {type: "circle", shape: {cx: to[0], cy: to[1], r: 2.5}, style: {fill: stroke}},
          ...high >= 11 ? [{type: "text", x: to[0] + 6, y: to[1], style: {
            text: name(network), fill: "#555", font: "11px system-ui, sans-serif", textVerticalAlign: "middle"}}] : [],
        ]};
      }}],
  }), rows.map(([network, , , , , label]) => ({network, label})));
});

// ---- tables ----------------------------------------------------------------------------------------------------------

const number = text => text === "" ? -Infinity : Number(text.replace(/ ±.*|[%,]/g, ""));

function sort(table, column, down) {
  const body = table.tBodies[0], rows = [...body.rows], text = row => row.cells[column].textContent;
  const isNumber = rows.every(row => !Number.isNaN(number(text(row))));
  rows.sort((a, b) => isNumber ? number(text(a)) - number(text(b))
    : text(a).localeCompare(text(b), undefined, {numeric: true}));
  body.append(...(down ? rows.reverse() : rows));
  [...table.tHead.rows[0].cells].forEach((cell, index) =>
    cell.setAttribute("aria-sort", index !== column ? "none" : down ? "descending" : "ascending"));
}

document.querySelectorAll("table").forEach((table, index) => {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    cell.tabIndex = 0;
    cell.onclick = () => {
      sorted[index] = [column, cell.getAttribute("aria-sort") === "ascending"];
      sort(table, ...sorted[index]);
    };
    cell.onkeydown = event => { if (event.key === "Enter") cell.onclick(); };
  });
  if (sorted[index] && sorted[index][0] < table.tHead.rows[0].cells.length) sort(table, ...sorted[index]);
});
document.querySelectorAll("tr[data-network]").forEach(row => { row.onclick = () => toggle(row.dataset.network); });

document.querySelectorAll("details").forEach((element, index) => { if ((saved.open || [])[index]) element.open = true; });
follow();
if (saved.y) scrollTo(0, saved.y);
})();
