//! Paints the sheet as a PNG. Letters are bitmaps in the program, so that it needs no installed fonts.

use std::fmt;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use tiny_skia::{
    Color, FillRule, LineCap, Paint, PathBuilder, Pixmap, PremultipliedColorU8, Stroke, StrokeDash, Transform,
};

use super::colours::{EVENT, GRID, Ink, LABEL, TEXT, of_class};
use super::drawing::Sheet;
use super::plot::{Axis, BOTTOM, HEIGHT, LEFT, Mark, Plot, RIGHT, Shape, TOP, WIDTH};

/// Pixels for each unit of the drawing.
const SCALE: f32 = 2.0;
/// Longest side in units of the drawing, far more than the plots of a report need.
const SIDE_MAX: f64 = 16_384.0;

/// Weight and height of letters.
type Letters = (FontWeight, RasterHeight);
const SMALL: Letters = (FontWeight::Regular, RasterHeight::Size20);
const PLAIN: Letters = (FontWeight::Regular, RasterHeight::Size24);
const STRONG: Letters = (FontWeight::Bold, RasterHeight::Size24);

/// Why a PNG cannot be made.
#[derive(Debug)]
pub enum PngError {
    /// The drawing is larger than an image may be.
    TooLarge,
    /// The encoder failed, for this reason.
    Encoding(String),
}

impl fmt::Display for PngError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("the drawing is too large for a PNG"),
            Self::Encoding(why) => write!(f, "the PNG cannot be encoded: {why}"),
        }
    }
}

impl std::error::Error for PngError {}

/// Paints the sheet.
pub(super) fn png(sheet: &Sheet) -> Result<Vec<u8>, PngError> {
    let pixels = |side: f64| side.ceil() as u32 * SCALE as u32;
    if sheet.width.max(sheet.height) > SIDE_MAX {
        return Err(PngError::TooLarge);
    }
    let pixmap = Pixmap::new(pixels(sheet.width), pixels(sheet.height)).ok_or(PngError::TooLarge)?;
    let mut canvas = Canvas { pixmap, x: 0.0, y: 0.0 };
    canvas.pixmap.fill(Color::WHITE);
    for text in &sheet.texts {
        let letters = if text.is_title { STRONG } else { PLAIN };
        canvas.text(&text.words, text.x, text.y, 0.0, letters, TEXT);
    }
    for (x, y, plot) in &sheet.plots {
        (canvas.x, canvas.y) = (*x, *y);
        canvas.plot(plot);
    }
    canvas.pixmap.encode_png().map_err(|error| PngError::Encoding(error.to_string()))
}

/// Pixels, and the upper left corner of the plot being painted.
struct Canvas {
    pixmap: Pixmap,
    x: f64,
    y: f64,
}

impl Canvas {
    fn plot(&mut self, plot: &Plot) {
        for shape in &plot.shapes {
            match shape {
                Shape::Grid { y } => self.line((LEFT, *y), (WIDTH - RIGHT, *y), GRID, None),
                Shape::Event { x, .. } => {
                    let dash = StrokeDash::new(vec![4.0, 4.0], 0.0);
                    self.line((*x, TOP), (*x, HEIGHT - BOTTOM), EVENT, dash);
                }
                Shape::Label { axis, x, y, words } => {
                    let before = if *axis == Axis::X { 0.5 } else { 1.0 };
                    self.text(words, *x, *y, before, SMALL, LABEL);
                }
                Shape::Values { class, mark, points, .. } => self.values(*mark, points, of_class(class)),
            }
        }
        for (x, y, class, name) in plot.legend() {
            self.values(Mark::Dots, &[(x, y)], of_class(class));
            self.text(name, x + 10.0, y + 4.0, 0.0, SMALL, LABEL);
        }
    }

    fn values(&mut self, mark: Mark, points: &[(f64, f64)], ink: Ink) {
        let mut path = PathBuilder::new();
        for (number, (x, y)) in points.iter().map(|(x, y)| (*x as f32, *y as f32)).enumerate() {
            match mark {
                Mark::Line if number > 0 => path.line_to(x, y),
                Mark::Line => path.move_to(x, y),
                Mark::Dots => path.push_circle(x, y, 2.0),
                Mark::Crosses => {
                    for down in [3.0, -3.0] {
                        path.move_to(x - 3.0, y - down);
                        path.line_to(x + 3.0, y + down);
                    }
                }
            }
        }
        // A line of a single point has no path.
        let Some(path) = path.finish() else { return };
        let (paint, transform) = (paint(ink), self.transform());
        if mark == Mark::Dots {
            self.pixmap.fill_path(&path, &paint, FillRule::Winding, transform, None);
        } else {
            let width = if mark == Mark::Line { 1.6 } else { 1.8 };
            self.pixmap.stroke_path(&path, &paint, &Stroke { width, ..Stroke::default() }, transform, None);
        }
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), ink: Ink, dash: Option<StrokeDash>) {
        let mut path = PathBuilder::new();
        path.move_to(from.0 as f32, from.1 as f32);
        path.line_to(to.0 as f32, to.1 as f32);
        let Some(path) = path.finish() else { return };
        let stroke = Stroke { width: 1.0, line_cap: LineCap::Butt, dash, ..Stroke::default() };
        self.pixmap.stroke_path(&path, &paint(ink), &stroke, self.transform(), None);
    }

    fn transform(&self) -> Transform {
        Transform::from_scale(SCALE, SCALE).pre_translate(self.x as f32, self.y as f32)
    }

    /// Paints words on a base line; `before` is the part of their width to the left of `x`.
    fn text(&mut self, words: &str, x: f64, y: f64, before: f64, (weight, height): Letters, ink: Ink) {
        let advance = get_raster_width(weight, height);
        let len = (words.chars().count() * advance) as f64;
        let left = (f64::from(SCALE) * (self.x + x) - before * len).round();
        // The base line is a fifth of the letters' height above their lower edge.
        let top = (f64::from(SCALE) * (self.y + y) - height.val() as f64 * 0.8).round();
        for (number, letter) in words.chars().enumerate() {
            let Some(raster) = get_raster(letter, weight, height).or_else(|| get_raster('?', weight, height))
            else {
                continue;
            };
            let left = left as i64 + (number * advance) as i64;
            for (row, y) in raster.rows().zip(top as i64..) {
                for (shade, x) in row.iter().zip(left..) {
                    self.blend(x, y, *shade, ink.0);
                }
            }
        }
    }

    /// Blends a colour into a pixel; positions outside the image are ignored.
    fn blend(&mut self, x: i64, y: i64, shade: u8, ink: [u8; 3]) {
        let (width, height) = (i64::from(self.pixmap.width()), i64::from(self.pixmap.height()));
        if shade == 0 || !(0..width).contains(&x) || !(0..height).contains(&y) {
            return;
        }
        let pixel = &mut self.pixmap.pixels_mut()[(y * width + x) as usize];
        let mix = |below: u8, above: u8| {
            ((u32::from(below) * (255 - u32::from(shade)) + u32::from(above) * u32::from(shade)) / 255) as u8
        };
        let [red, green, blue] = ink;
        let mixed = (mix(pixel.red(), red), mix(pixel.green(), green), mix(pixel.blue(), blue));
        // An opaque colour is always a valid premultiplied one.
        if let Some(mixed) = PremultipliedColorU8::from_rgba(mixed.0, mixed.1, mixed.2, u8::MAX) {
            *pixel = mixed;
        }
    }
}

fn paint(([red, green, blue], opacity): Ink) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(red, green, blue, (opacity * 255.0) as u8);
    paint
}

#[cfg(test)]
mod tests {
    use super::super::drawing::Text;
    use super::super::plot::{Layer, Unit, plot};
    use super::*;

    #[test]
    fn a_painted_sheet_has_its_size_letters_and_points() {
        let values = [(0, 1.0), (10, 3.0)];
        let layer = Layer { name: "\u{3c0}".into(), mark: Mark::Dots, class: "c1", values: &values };
        let drawn = plot((0, 10), Unit::Count, &[layer], &[(5, "there".into())]).expect("there are values");
        let title = Text { is_title: true, x: 4.0, y: 18.0, words: "W".into() };
        let height = 40.0 + Plot::HEIGHT;
        let sheet = Sheet { width: Plot::WIDTH, height, texts: vec![title], plots: vec![(0.0, 40.0, drawn)] };
        let bytes = png(&sheet).expect("it is small");
        let pixmap = Pixmap::decode_png(&bytes).expect("a PNG");
        assert_eq!((pixmap.width(), pixmap.height()), (1920, 2 * (40 + 316)));
        let has = |[red, green, blue]: [u8; 3], x: std::ops::Range<u32>, y: std::ops::Range<u32>| {
            x.into_iter().any(|x| {
                y.clone().any(|y| {
                    let pixel = pixmap.pixel(x, y).expect("inside");
                    [pixel.red(), pixel.green(), pixel.blue()] == [red, green, blue]
                })
            })
        };
        assert!(has(TEXT.0, 8..24, 12..40), "the title");
        assert!(!has(TEXT.0, 40..1920, 0..60), "nothing beside the title");
        // The last value, at the right edge of the plot.
        assert!(has(of_class("c1").0, 1870..1890, 80..140));
        assert!(has(GRID.0, 200..400, 80..640));
    }
}
