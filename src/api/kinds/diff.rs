//! Unified diffs as upstream prints them into texts (Python's `difflib`, which Go's port follows).

use std::collections::HashMap;
use std::ops::Range;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// What two runs of lines have to do with each other.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    equal: bool,
    a: Range<usize>,
    b: Range<usize>,
}

/// The unified diff of two texts, without file names.
pub fn unified(a: &str, b: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.split('\n').collect(), b.split('\n').collect());
    let mut out = String::new();
    for group in groups(steps(&a, &b)) {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let a_range = range(first.a.start, last.a.end);
        let b_range = range(first.b.start, last.b.end);
        out.push_str(&format!("@@ -{a_range} +{b_range} @@\n"));
        for step in &group {
            let (minus, plus) = if step.equal { (' ', None) } else { ('-', Some('+')) };
            lines(&mut out, minus, &a[step.a.clone()]);
            if let Some(plus) = plus {
                lines(&mut out, plus, &b[step.b.clone()]);
            }
        }
    }
    out
}

fn lines(out: &mut String, sign: char, lines: &[&str]) {
    for line in lines {
        out.push(sign);
        out.push_str(line);
        out.push('\n');
    }
}

fn range(start: usize, end: usize) -> String {
    match end - start {
        1 => format!("{}", start + 1),
        0 => format!("{start},0"),
        n => format!("{},{n}", start + 1),
    }
}

/// Where each line of `b` stands; lines that are all too common start no match.
fn index<'a>(b: &[&'a str]) -> HashMap<&'a str, Vec<usize>> {
    let mut at: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, line) in b.iter().enumerate() {
        at.entry(line).or_default().push(i);
    }
    if b.len() >= 200 {
        let popular = b.len() / 100 + 1;
        at.retain(|_, places| places.len() <= popular);
    }
    at
}

/// The longest run of equal lines in two ranges, the earliest of several: starts and length.
fn longest(
    a: &[&str], b: &[&str], at: &HashMap<&str, Vec<usize>>, in_a: &Range<usize>, in_b: &Range<usize>,
) -> (usize, usize, usize) {
    let (mut i, mut j, mut size) = (in_a.start, in_b.start, 0);
    let mut ending: HashMap<usize, usize> = HashMap::new();
    for x in in_a.clone() {
        let mut now = HashMap::new();
        for &y in at.get(a[x]).into_iter().flatten().filter(|y| in_b.contains(y)) {
            let length = y.checked_sub(1).and_then(|before| ending.get(&before)).map_or(1, |n| n + 1);
            now.insert(y, length);
            if length > size {
                (i, j, size) = (x + 1 - length, y + 1 - length, length);
            }
        }
        ending = now;
    }
    while i > in_a.start && j > in_b.start && a[i - 1] == b[j - 1] {
        (i, j, size) = (i - 1, j - 1, size + 1);
    }
    while i + size < in_a.end && j + size < in_b.end && a[i + size] == b[j + size] {
        size += 1;
    }
    (i, j, size)
}

fn matches(a: &[&str], b: &[&str]) -> Vec<(usize, usize, usize)> {
    let at = index(b);
    let mut found = Vec::new();
    let mut open = vec![(0..a.len(), 0..b.len())];
    while let Some((in_a, in_b)) = open.pop() {
        let (i, j, size) = longest(a, b, &at, &in_a, &in_b);
        if size == 0 {
            continue;
        }
        found.push((i, j, size));
        open.push((in_a.start..i, in_b.start..j));
        open.push((i + size..in_a.end, j + size..in_b.end));
    }
    found.sort_unstable();
    found
}

fn steps(a: &[&str], b: &[&str]) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    let (mut i, mut j) = (0, 0);
    let mut all = matches(a, b);
    all.push((a.len(), b.len(), 0));
    for (x, y, size) in all {
        if i < x || j < y {
            out.push(Step { equal: false, a: i..x, b: j..y });
        }
        if size > 0 {
            match out.last_mut().filter(|last| last.equal) {
                Some(last) => (last.a.end, last.b.end) = (x + size, y + size),
                None => out.push(Step { equal: true, a: x..x + size, b: y..y + size }),
            }
        }
        (i, j) = (x + size, y + size);
    }
    out
}

/// Changes with their context; changes far apart are in groups of their own.
fn groups(mut steps: Vec<Step>) -> Vec<Vec<Step>> {
    if let Some(first) = steps.first_mut().filter(|s| s.equal) {
        let keep = first.a.len().min(CONTEXT);
        first.a.start = first.a.end - keep;
        first.b.start = first.b.end - keep;
    }
    if let Some(last) = steps.last_mut().filter(|s| s.equal) {
        let keep = last.a.len().min(CONTEXT);
        last.a.end = last.a.start + keep;
        last.b.end = last.b.start + keep;
    }
    let mut out = Vec::new();
    let mut group: Vec<Step> = Vec::new();
    for step in steps {
        if step.equal && step.a.len() > 2 * CONTEXT {
            let (a, b) = (step.a.start, step.b.start);
            group.push(Step { equal: true, a: a..a + CONTEXT, b: b..b + CONTEXT });
            out.push(std::mem::take(&mut group));
            let (a, b) = (step.a.end, step.b.end);
            group.push(Step { equal: true, a: a - CONTEXT..a, b: b - CONTEXT..b });
        } else {
            group.push(step);
        }
    }
    out.push(group);
    out.retain(|group| group.iter().any(|step| !step.equal));
    out
}

#[cfg(test)]
mod tests {
    use super::unified;

    #[test]
    fn one_change_with_its_context() {
        let a = "1\n2\n3\n4\n5\n6\n7\n8\n9";
        assert_eq!(unified(a, &a.replace('5', "x")), "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n");
    }

    #[test]
    fn changes_far_apart_have_heads_of_their_own() {
        let a: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        let b: Vec<String> =
            a.iter().map(|s| if s == "2" || s == "25" { format!("{s}x") } else { s.clone() }).collect();
        let diff = unified(&a.join("\n"), &b.join("\n"));
        let heads: Vec<&str> = diff.lines().filter(|l| l.starts_with("@@")).collect();
        assert_eq!(heads, ["@@ -1,6 +1,6 @@", "@@ -23,7 +23,7 @@"]);
    }

    #[test]
    fn equal_texts_have_no_diff() {
        assert_eq!(unified("a\nb", "a\nb"), "");
    }
}
