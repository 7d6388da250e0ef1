// Prepare images as data/transforms.py does, for the same pixels: crop to the central square, resample by
// antialiased bilinear interpolation in double precision, round once; then convert the channels.

// The weights of the source pixels, for each of `to` target pixels.
function triangleWeights(from, to) {
  const scale = from / to;
  const support = Math.max(1, scale);
  return Array.from({ length: to }, (_, target) => {
    const centre = (target + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const end = Math.min(from, Math.trunc(centre + support + 0.5));
    const weights = [];
    for (let i = first; i < end; i++) weights.push(Math.max(0, 1 - Math.abs((i - centre + 0.5) / support)));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return { first, weights: weights.map((weight) => weight / total) };
  });
}

// The central square of RGBA pixels as `size` × `size` RGB bytes.
function resample(pixels, cols, rows, size) {
  const side = Math.min(cols, rows);
  const [left, top] = [Math.floor((cols - side) / 2), Math.floor((rows - side) / 2)];
  const places = triangleWeights(side, size);
  const wide = new Float64Array(side * size * 3); // (row, target col, channel)
  for (let row = 0; row < side; row++) {
    places.forEach(({ first, weights }, col) => {
      for (let c = 0; c < 3; c++) {
        let sum = 0;
        for (let i = 0; i < weights.length; i++) {
          sum += weights[i] * pixels[((top + row) * cols + left + first + i) * 4 + c];
        }
        wide[(row * size + col) * 3 + c] = sum;
      }
    });
  }
  const resized = new Uint8Array(size * size * 3);
  places.forEach(({ first, weights }, row) => {
    for (let i = 0; i < 3 * size; i++) {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * wide[(first + k) * size * 3 + i];
      resized[row * size * 3 + i] = Math.max(0, Math.min(255, Math.floor(sum + 0.5 + 1e-6)));
    }
  });
  return resized;
}

// RGB bytes as they are, or as one channel of ITU-R 601 luma.
function withChannels(rgb, channels) {
  if (channels === 3) return rgb;
  const grey = new Uint8Array(rgb.length / 3);
  for (let i = 0; i < grey.length; i++) {
    grey[i] = Math.floor((299 * rgb[3 * i] + 587 * rgb[3 * i + 1] + 114 * rgb[3 * i + 2] + 500) / 1000);
  }
  return grey;
}

// A file of the user, in the models' size; images without a black background are composited on black.
async function readPicture(file, size, channels) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  const pen = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  pen.drawImage(bitmap, 0, 0);
  const { data: pixels } = pen.getImageData(0, 0, canvas.width, canvas.height);
  return withChannels(resample(pixels, canvas.width, canvas.height, size), channels);
}
