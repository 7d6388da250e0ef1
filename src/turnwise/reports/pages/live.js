// Run the models of the page on an image of the user, at any angle, and map which parts count.
(async () => {
  const live = JSON.parse(document.getElementById("live-data").textContent);
  const { size, channels, fill, classes, squares } = live;
  const [canvas, slider, statusLine, boxes, drop, input, choice, play, trace, occlusion, note] = [
    "image", "angle", "status", "models", "drop", "file", "choice", "play", "trace", "occlusion", "note",
  ].map((name) => document.getElementById(`live-${name}`)); // prettier-ignore
  const quarters = [...document.querySelectorAll("#live [data-degrees]")];
  const pictures = [...choice.children];
  const source = { rows: size, cols: size, channels };
  const STEP = 2; // degrees from one frame to the next
  const MAX_FILE = 50e6; // bytes
  const MAX_SHOWN = 10; // classes
  const CHUNK = 7; // images at a time, of the occlusion map, so that the page stays responsive
  let picture = null; // { pixels, label, shown, top, curves }: what is rotated, and what was predicted
  let busy = false;
  let again = false;

  async function unpack(base64) {
    const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  }

  async function start() {
    const script = new Blob([await unpack(live.runtime.script)], { type: "text/javascript" });
    const ort = await import(URL.createObjectURL(script));
    ort.env.logLevel = "error";
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmBinary = await unpack(live.runtime.program);
    const sessions = [];
    for (const model of live.models) sessions.push(await ort.InferenceSession.create(await unpack(model.file)));
    return { ort, sessions };
  }

  // From RGBA views to one array of probabilities for each view.
  async function predict({ ort, sessions }, m, views) {
    const plane = size * size;
    const values = new Float32Array(views.length * channels * plane);
    views.forEach(({ data: rgba }, v) => {
      for (let c = 0; c < channels; c++) {
        for (let i = 0; i < plane; i++) values[(v * channels + c) * plane + i] = rgba[4 * i + c] / 255;
      }
    });
    const images = new ort.Tensor("float32", values, [views.length, channels, size, size]);
    const { probabilities } = await sessions[m].run({ images }, ["probabilities"]);
    return views.map((_, v) => [...probabilities.data.slice(v * classes.length, (v + 1) * classes.length)]);
  }

  const best = (probabilities) => probabilities.indexOf(Math.max(...probabilities));

  // The classes to show: all, or those that are most probable for the upright image.
  function classesToShow(upright, label) {
    const numbers = classes.map((_, c) => c);
    if (classes.length <= MAX_SHOWN) return numbers;
    const strength = (c) => Math.max(...upright.map((probabilities) => probabilities[c]));
    const chosen = numbers.sort((a, b) => strength(b) - strength(a)).slice(0, MAX_SHOWN);
    if (label !== null && !chosen.includes(label)) chosen[MAX_SHOWN - 1] = label;
    return chosen.sort((a, b) => a - b);
  }

  function draw(view) {
    [canvas.width, canvas.height] = [size, size];
    canvas.getContext("2d", { willReadFrequently: true }).putImageData(view, 0, 0);
  }

  // The probability of each model's upright prediction, at the angles seen so far.
  function drawTrace() {
    const name = "http://www.w3.org/2000/svg";
    const plot = document.createElementNS(name, "svg");
    plot.setAttribute("viewBox", "0 0 360 100");
    plot.setAttribute("preserveAspectRatio", "none");
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", "probability of the upright prediction against the angle");
    for (const x of [90, 180, 270]) {
      const line = document.createElementNS(name, "path");
      line.setAttribute("d", `M${x} 0V100`);
      plot.append(line);
    }
    const legend = document.createElement("figcaption");
    legend.append("Probability, 0 to 100 %, of the upright prediction from 0 to 359°; lines at 90°, 180° and 270°. ");
    live.models.forEach((model, m) => {
      const curve = document.createElementNS(name, "path");
      const points = [...picture.curves[m]].sort(([a], [b]) => a - b).map(([x, p]) => `${x} ${100 - 100 * p}`);
      curve.setAttribute("d", `M${points.join("L")}`);
      curve.setAttribute("class", `curve curve-${m % 4}`);
      plot.append(curve);
      const key = document.createElement("span");
      key.className = `key key-${m % 4}`;
      key.textContent = `${model.name}: ${classes[picture.top[m]]}`;
      legend.append(key, " ");
    });
    trace.replaceChildren(plot, legend);
    trace.hidden = false;
  }

  // Replace one square by the mean colour of the view.  The borders are symmetric, so that the map of a
  // rotated image can be the rotated map.
  function occlude(view, colour, row, col) {
    const edge = (i) => (2 * i <= squares ? Math.floor((i * size) / squares) : size - edge(squares - i));
    const covered = new ImageData(new Uint8ClampedArray(view.data), size, size);
    for (let y = edge(row); y < edge(row + 1); y++) {
      for (let x = edge(col); x < edge(col + 1); x++) {
        for (let c = 0; c < 3; c++) covered.data[4 * (y * size + x) + c] = colour[c];
      }
    }
    return covered;
  }

  // How much the probability of the predicted class falls when a square is covered.
  async function occlusionMap(runtime, m, view, probabilities) {
    const colour = means({ rows: size, cols: size, channels: 4 }, view.data, () => true);
    const top = best(probabilities);
    const falls = [];
    for (let first = 0; first < squares * squares; first += CHUNK) {
      const numbers = Array.from({ length: Math.min(CHUNK, squares * squares - first) }, (_, i) => first + i);
      const views = numbers.map((n) => occlude(view, colour, Math.floor(n / squares), n % squares));
      const found = await predict(runtime, m, views);
      falls.push(...found.map((each) => Math.max(0, probabilities[top] - each[top])));
      await new Promise(requestAnimationFrame);
    }
    return falls;
  }

  // Draw the view, and brighten what counts; without a map yet, the view alone.
  function drawMap(box, falls) {
    const shown = document.createElement("canvas");
    const caption = document.createElement("small");
    [shown.width, shown.height] = [8 * size, 8 * size];
    const pen = shown.getContext("2d");
    const side = shown.width / squares;
    const largest = Math.max(0, ...falls);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(canvas, 0, 0, shown.width, shown.height);
    pen.fillStyle = "rgba(0, 0, 0, 0.45)";
    pen.fillRect(0, 0, shown.width, shown.height);
    falls.forEach((fall, n) => {
      pen.fillStyle = `rgba(255, 170, 0, ${largest > 0 ? (0.85 * fall) / largest : 0})`;
      pen.fillRect((n % squares) * side, Math.floor(n / squares) * side, side, side);
    });
    caption.textContent = falls.length ? `largest fall: ${percent(largest)}` : "measuring…";
    shown.setAttribute("role", "img");
    shown.setAttribute("aria-label", `map of the parts that count; ${caption.textContent}`);
    box.replaceChildren(shown, caption);
  }

  async function show(runtime) {
    const [current, degrees] = [picture, Number(slider.value)];
    const began = performance.now();
    const view = sample(source, current.pixels, degrees, fill);
    const found = [];
    for (let m = 0; m < live.models.length; m++) found.push((await predict(runtime, m, [view]))[0]);
    const took = performance.now() - began;
    if (current !== picture) return;
    if (!current.top) {
      current.top = found.map(best);
      current.shown = classesToShow(found, current.label);
      current.curves = found.map(() => new Map());
    }
    found.forEach((probabilities, m) => current.curves[m].set(degrees, probabilities[current.top[m]]));
    draw(view);
    const label = current.label === null ? null : current.shown.indexOf(current.label);
    live.models.forEach(({ name }, m) => {
      const values = current.shown.map((c) => found[m][c]);
      showPredictions(boxes.children[m].firstChild, name, current.shown.map((c) => classes[c]), values, label);
    });
    drawTrace();
    statusLine.className = "";
    statusLine.textContent = `rotated by ${degrees}°, corners filled by ${fill}; ${took.toFixed(0)} ms in this browser`;
    const maps = live.models.map((_, m) => boxes.children[m].lastChild);
    maps.forEach((map) => (occlusion.checked ? drawMap(map, []) : map.replaceChildren()));
    if (!occlusion.checked || isPlaying()) return;
    for (let m = 0; m < maps.length; m++) {
      const falls = await occlusionMap(runtime, m, view, found[m]);
      if (again || current !== picture) return; // another view is wanted already
      drawMap(maps[m], falls);
    }
  }

  function fail(message) {
    statusLine.className = "error";
    statusLine.textContent = message;
  }

  // One view at a time; what changes meanwhile leads to one more.
  async function update(runtime) {
    if (!picture) return;
    again = busy;
    if (busy) return;
    busy = true;
    try {
      do {
        again = false;
        await show(runtime);
      } while (again);
    } catch (error) {
      fail(`The models failed: ${error.message}`);
    }
    busy = false;
  }

  function take(runtime, pixels, label) {
    picture = { pixels, label };
    slider.value = 0;
    pictures.forEach((button, i) => button.setAttribute("aria-pressed", String(live.examples[i].bytes === pixels)));
    update(runtime);
  }

  async function open(runtime, file) {
    if (!file) return;
    if (file.size > MAX_FILE) {
      fail(`The file has ${file.size} bytes, and ${MAX_FILE} is the limit.`);
      return;
    }
    try {
      take(runtime, await readPicture(file, size, channels), null);
    } catch {
      fail("This browser cannot read the file as a picture; choose a PNG or JPEG file.");
    }
  }

  const isPlaying = () => play.getAttribute("aria-pressed") === "true";

  function rotate(runtime) {
    if (!isPlaying()) return;
    slider.value = (Number(slider.value) + STEP) % 360;
    update(runtime).then(() => requestAnimationFrame(() => rotate(runtime)));
  }

  function listen(runtime) {
    slider.addEventListener("input", () => update(runtime));
    occlusion.addEventListener("change", () => {
      note.textContent = occlusion.checked
        ? `Bright squares count: covering one by the mean colour lowers the probability of the predicted class. ${squares} × ${squares} squares, each map scaled to its largest fall.`
        : "";
      update(runtime);
    });
    quarters.forEach((button) =>
      button.addEventListener("click", () => {
        slider.value = button.dataset.degrees;
        update(runtime);
      }),
    );
    play.addEventListener("click", () => {
      play.setAttribute("aria-pressed", String(!isPlaying()));
      if (isPlaying()) rotate(runtime);
      else update(runtime);
    });
    pictures.forEach((button, i) => {
      live.examples[i].bytes = bytesOf(live.examples[i].pixels);
      button.addEventListener("click", () => take(runtime, live.examples[i].bytes, live.examples[i].label));
    });
    takeFiles(drop, input, (file) => open(runtime, file));
    for (const control of [slider, input, occlusion, play, ...quarters, ...pictures]) control.disabled = false;
  }

  for (const _ of live.models) {
    const [box, predictions, map] = ["div", "div", "div"].map((tag) => document.createElement(tag));
    [box.className, map.className] = ["model", "map"];
    box.append(predictions, map);
    boxes.append(box);
  }
  try {
    const runtime = await start();
    listen(runtime);
    take(runtime, live.examples[0].bytes, live.examples[0].label);
  } catch (error) {
    fail(`The models cannot run in this browser: ${error.message}`);
  }
})();
