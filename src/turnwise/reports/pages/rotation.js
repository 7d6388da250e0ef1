// Rotate and shift images as geometry/warps.py does: bilinear, with a fill mode outside the borders.
const inside = (n, size) => Math.max(0, Math.min(size - 1, n));
function reflected(x, size) {
  const around = (((x + 0.5) % (2 * size)) + 2 * size) % (2 * size);
  return inside(Math.min(around, 2 * size - around) - 0.5, size);
}
const places = { reflect: reflected, border: inside, disc: inside };

// The mean of each channel, over the inscribed disc or the whole image.
function means({ rows, cols, channels }, pixels, keeps) {
  const sums = new Array(channels).fill(0);
  let count = 0;
  for (let row = 0; row < rows; row++) {
    for (let col = 0; col < cols; col++) {
      if (!keeps(row, col)) continue;
      count++;
      for (let c = 0; c < channels; c++) sums[c] += pixels[(row * cols + col) * channels + c];
    }
  }
  return sums.map((sum) => sum / count);
}

// The image that the model was given: f(A⁻¹(x − t)), bilinear; x right, y up.
function sample(source, pixels, degrees, fill, right = 0, up = 0) {
  const { rows, cols, channels } = source;
  const [cos, sin] = [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
  const drawn = new ImageData(cols, rows);
  const radius = fill === "disc" ? Math.min(rows, cols) / 2 : Infinity;
  const keeps = (row, col) => Math.hypot(row - (rows - 1) / 2, col - (cols - 1) / 2) <= radius;
  const outside = fill === "mean" ? means(source, pixels, keeps) : new Array(channels).fill(0);
  const place = places[fill] || ((x) => x);
  const at = (row, col, channel) =>
    row < 0 || col < 0 || row >= rows || col >= cols
      ? outside[channel]
      : pixels[(row * cols + col) * channels + channel];
  for (let row = 0; row < rows; row++) {
    for (let col = 0; col < cols; col++) {
      const x = col - (cols - 1) / 2 - right;
      const y = (rows - 1) / 2 - row - up;
      const fromCol = place(x * cos + y * sin + (cols - 1) / 2, cols);
      const fromRow = place((rows - 1) / 2 - (y * cos - x * sin), rows);
      const [top, left] = [Math.floor(fromRow + 1e-9), Math.floor(fromCol + 1e-9)];
      const [below, beside] = [Math.max(0, fromRow - top), Math.max(0, fromCol - left)];
      for (let channel = 0; channel < 3; channel++) {
        const c = channels === 1 ? 0 : channel;
        drawn.data[4 * (row * cols + col) + channel] =
          (1 - below) * ((1 - beside) * at(top, left, c) + beside * at(top, left + 1, c)) +
          below * ((1 - beside) * at(top + 1, left, c) + beside * at(top + 1, left + 1, c));
      }
      drawn.data[4 * (row * cols + col) + 3] = 255;
    }
  }
  return radius < Infinity ? keepDisc(drawn, keeps) : drawn;
}

// Replace what is outside the inscribed disc by the mean of the disc.
function keepDisc(drawn, keeps) {
  const { width, height } = drawn;
  const mean = means({ rows: height, cols: width, channels: 4 }, drawn.data, keeps);
  for (let row = 0; row < height; row++) {
    for (let col = 0; col < width; col++) {
      if (!keeps(row, col)) for (let c = 0; c < 4; c++) drawn.data[4 * (row * width + col) + c] = mean[c];
    }
  }
  return drawn;
}
