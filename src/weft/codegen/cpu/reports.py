"""Runtime error reports as LLVM code: which kernel found which value to break a rule."""

from __future__ import annotations

REPORT_BROKEN = """\
define internal void @report_broken(ptr %error, i64 %key, i64 %value) nounwind noinline cold {
entry:
  %before = load atomic i64, ptr %error monotonic, align 8
  %less = icmp ult i64 %key, %before
  br i1 %less, label %take, label %done
take:
  %lock = getelementptr i64, ptr %error, i64 2
  %tried = cmpxchg ptr %lock, i64 0, i64 1 acquire monotonic
  %free = extractvalue { i64, i1 } %tried, 1
  br i1 %free, label %locked, label %take
locked:
  %now = load atomic i64, ptr %error monotonic, align 8
  %least = icmp ult i64 %key, %now
  br i1 %least, label %keep, label %leave
keep:
  store atomic i64 %key, ptr %error monotonic, align 8
  %place = getelementptr i64, ptr %error, i64 3
  store i64 %value, ptr %place, align 8
  br label %leave
leave:
  store atomic i64 0, ptr %lock release, align 8
  br label %done
done:
  ret void
}"""
"""Keeps the least of the keys (check, element) that any thread reports, with the value there: the
two words change together, under the lock of the record."""
