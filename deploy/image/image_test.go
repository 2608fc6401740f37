package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// executable returns the headers of an ELF file, and some content.
func executable(t *testing.T, machine elf.Machine, kind elf.Type, programs ...elf.ProgType) []byte {
	t.Helper()
	h := elf.Header64{Type: uint16(kind), Machine: uint16(machine), Version: 1, Ehsize: 64, Phentsize: 56, Phoff: 64, Phnum: uint16(len(programs))}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	var b bytes.Buffer
	for _, part := range []any{h, programHeaders(programs)} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	b.Write(bytes.Repeat([]byte{1, 2, 3, 4}, 1<<14))
	return b.Bytes()
}

func programHeaders(types []elf.ProgType) (list []elf.Prog64) {
	for _, kind := range types {
		list = append(list, elf.Prog64{Type: uint32(kind)})
	}
	return list
}

// programDir returns a directory with the programs.
func programDir(t *testing.T, arch string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		writeProgram(t, filepath.Join(dir, name), append(executable(t, machines[arch], elf.ET_EXEC), name...))
	}
	return dir
}

func writeProgram(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o700); err != nil {
		t.Fatal(err)
	}
}

// entries returns the files of a tar, and checks that no header depends on the machine.
func entries(t *testing.T, content []byte, modified time.Time) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || !h.ModTime.Equal(modified) {
			t.Errorf("header of %s: %+v; want user 0 and the time %v", h.Name, h, modified)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func unmarshal[T any](t *testing.T, content []byte) (v T) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, content)
	}
	return v
}

// blob returns the blob of a descriptor, and checks its size and digest.
func blob(t *testing.T, files map[string][]byte, d descriptor) []byte {
	t.Helper()
	content, ok := files[blobPath(d)]
	sum := sha256.Sum256(content)
	if !ok || len(content) != d.Size || d.Digest != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Fatalf("blob %s has %d bytes (in the tar: %t); want %d bytes of that digest", d.Digest, len(content), ok, d.Size)
	}
	return content
}

// TestLayout: the tar is an OCI image layout with one manifest per architecture, which manifest.json lists too.
func TestLayout(t *testing.T) {
	const seconds = 1_700_000_000
	out := filepath.Join(t.TempDir(), "image.tar")
	runImage(t, "-o", out, "-version", "v1.2.3-dirty", "-revision", "abc", "-created", strconv.Itoa(seconds),
		"amd64="+programDir(t, "amd64"), "arm64="+programDir(t, "arm64"))
	content, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(seconds, 0).UTC()
	files := entries(t, content, at)
	if got := string(files["oci-layout"]); got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout is %s", got)
	}
	top := unmarshal[index](t, files["index.json"]).Manifests
	if len(top) != 1 || top[0].MediaType != typeIndex || top[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3-dirty" {
		t.Fatalf("index.json has %+v; want one index with the version as name", top)
	}
	all := unmarshal[index](t, blob(t, files, top[0])).Manifests
	docker := unmarshal[[]dockerImage](t, files["manifest.json"])
	if len(all) != 2 || len(docker) != 2 {
		t.Fatalf("%d manifests, %d in manifest.json; want 2", len(all), len(docker))
	}
	for i, arch := range []string{"amd64", "arm64"} {
		m := checkManifest(t, files, all[i], arch, at)
		want := dockerImage{blobPath(m.Config), []string{"evictd:v1.2.3-dirty-" + arch}, []string{blobPath(m.Layers[0])}}
		if diff := cmp.Diff(want, docker[i]); diff != "" {
			t.Errorf("manifest.json of %s (-want +got):\n%s", arch, diff)
		}
	}
}

// checkManifest checks the manifest of one architecture, its configuration and its layer, which has the programs and
// nothing else.
func checkManifest(t *testing.T, files map[string][]byte, d descriptor, arch string, at time.Time) manifest {
	t.Helper()
	m := unmarshal[manifest](t, blob(t, files, d))
	config := unmarshal[imageConfig](t, blob(t, files, m.Config))
	if *d.Platform != (ociPlatform{arch, "linux"}) || config.Architecture != arch {
		t.Errorf("the manifest is for %v and its configuration for %s; want linux/%s", d.Platform, config.Architecture, arch)
	}
	if !config.Created.Equal(at) || config.Config.Labels["org.opencontainers.image.revision"] != "abc" {
		t.Errorf("configuration of %s: %+v", arch, config)
	}
	gz, err := gzip.NewReader(bytes.NewReader(blob(t, files, m.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(gz)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(layer); config.RootFS.DiffIDs[0] != digest(sum[:]) {
		t.Errorf("diff_ids of %s is %s; want %s", arch, config.RootFS.DiffIDs, digest(sum[:]))
	}
	want := map[string][]byte{"usr/": {}, "usr/bin/": {}}
	for _, name := range programs {
		want["usr/bin/"+name] = append(executable(t, machines[arch], elf.ET_EXEC), name...)
	}
	if diff := cmp.Diff(want, entries(t, layer, at)); diff != "" {
		t.Errorf("layer of %s (-want +got):\n%s", arch, diff)
	}
	return m
}

func runImage(t *testing.T, args ...string) {
	t.Helper()
	var stderr strings.Builder
	if code := run(args, &stderr); code != exitOK || stderr.Len() > 0 {
		t.Fatalf("image %q = %d: %s", args, code, &stderr)
	}
}

// TestReproducible: the same programs in another directory, written at another time, give the same bytes.
func TestReproducible(t *testing.T) {
	var images [2][]byte
	for i := range images {
		dir := programDir(t, "amd64")
		if err := os.Chtimes(filepath.Join(dir, "evictd"), time.Time{}, time.Unix(int64(i), 0)); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "image.tar")
		runImage(t, "-o", out, "-version", "v1", "amd64="+dir)
		var err error
		if images[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(images[0], images[1]) {
		t.Error("the same programs give two different images")
	}
	if top := unmarshal[index](t, entries(t, images[0], time.Unix(0, 0))["index.json"]).Manifests[0]; top.MediaType != typeManifest {
		t.Errorf("the image of one architecture is %s; want a manifest", top.MediaType)
	}
}

func TestBadInput(t *testing.T) {
	good := programDir(t, "amd64")
	with := func(content []byte) string {
		dir := programDir(t, "amd64")
		writeProgram(t, filepath.Join(dir, "evictd"), content)
		return "amd64=" + dir
	}
	missing := programDir(t, "amd64")
	if err := os.Remove(filepath.Join(missing, "evictd-kube")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no programs", nil, exitUsage, "give ARCH=DIR"},
		{"no directory", []string{"amd64"}, exitUsage, `"amd64" is not ARCH=DIR`},
		{"an architecture without a name", []string{"riscv64=" + good}, exitUsage, `"riscv64"`},
		{"an architecture twice", []string{"amd64=" + good, "amd64=" + good}, exitUsage, "given twice"},
		{"no version", []string{"-version", "", "amd64=" + good}, exitUsage, `-version ""`},
		{"a version with a slash", []string{"-version", "a/b", "amd64=" + good}, exitUsage, `"a/b" can't be the tag`},
		{"a time before 1970", []string{"-created", "-1", "amd64=" + good}, exitUsage, "before 1970"},
		{"a time that is no number", []string{"-created", "now", "amd64=" + good}, exitUsage, "invalid value"},
		{"another directory", []string{"amd64=" + filepath.Join(good, "none")}, exitError, "no such file or directory: make image builds it"},
		{"a missing program", []string{"amd64=" + missing}, exitError, "evictd-kube: no such file"},
		{"an empty program", []string{with(nil)}, exitError, "not an ELF executable"},
		{"a script", []string{with([]byte("#!/bin/sh\n"))}, exitError, "not an ELF executable"},
		{"another architecture", []string{"arm64=" + good}, exitError, "is for EM_X86_64, and not for linux/arm64 (EM_AARCH64)"},
		{"one program of another architecture", []string{with(executable(t, elf.EM_AARCH64, elf.ET_EXEC))}, exitError, "evictd is for EM_AARCH64, and not for linux/amd64"},
		{"an object", []string{with(executable(t, elf.EM_X86_64, elf.ET_REL))}, exitError, "not an executable"},
		{"a dynamic program", []string{with(executable(t, elf.EM_X86_64, elf.ET_DYN, elf.PT_INTERP))}, exitError, "CGO_ENABLED=0"},
	} {
		out := filepath.Join(t.TempDir(), "image.tar")
		writeProgram(t, out, []byte("before"))
		var stderr strings.Builder
		if code := run(append([]string{"-o", out, "-version", "v1"}, tt.args...), &stderr); code != tt.code || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", tt.name, code, &stderr, tt.code, tt.want)
		}
		unchanged(t, tt.name, out)
	}
}

// unchanged checks that a failed run has left the output as it was, and nothing beside it.
func unchanged(t *testing.T, name, out string) {
	t.Helper()
	if got, err := os.ReadFile(out); string(got) != "before" || err != nil {
		t.Errorf("%s: the output has %d bytes, %v; want it unchanged", name, len(got), err)
	}
	list, err := os.ReadDir(filepath.Dir(out))
	if err != nil || len(list) != 1 {
		t.Errorf("%s: %v, %v in the directory of the output; want one file", name, list, err)
	}
}

func TestBadOutput(t *testing.T) {
	programs := "amd64=" + programDir(t, "amd64")
	dir := t.TempDir()
	writeProgram(t, filepath.Join(dir, "file"), nil)
	for _, tt := range []struct{ out, want string }{
		{"", "set -o FILE"},
		{filepath.Join(dir, "none", "image.tar"), "no such file or directory"},
		{filepath.Join(dir, "file", "image.tar"), "not a directory"},
		{dir, "is not a regular file"},
		{"/dev/full", "is not a regular file"},
		{"/proc/image.tar", "/proc/image.tar"},
	} {
		var stderr strings.Builder
		if code := run([]string{"-o", tt.out, "-version", "v1", programs}, &stderr); code == exitOK || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("image -o %q: exit code %d, %q; want an error with %q", tt.out, code, &stderr, tt.want)
		}
	}
}

// TestFullDisk: on a full disk the output stays as it was, and no part of an image remains.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to mount a small filesystem")
	}
	dir := t.TempDir()
	if err := unix.Mount("image-test", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	out := filepath.Join(dir, "image.tar")
	writeProgram(t, out, []byte("before"))
	big := programDir(t, "amd64")
	noise := sha256.Sum256(nil)
	content := executable(t, elf.EM_X86_64, elf.ET_EXEC)
	for range 1 << 10 { // does not compress
		noise = sha256.Sum256(noise[:])
		content = append(content, noise[:]...)
	}
	writeProgram(t, filepath.Join(big, "evictd"), content)
	var stderr strings.Builder
	if code := run([]string{"-o", out, "-version", "v1", "amd64=" + big}, &stderr); code != exitError || !strings.Contains(stderr.String(), "no space left on device") {
		t.Errorf("exit code %d, %q; want %d, no space", code, &stderr, exitError)
	}
	unchanged(t, "full disk", out)
}

// TestInterrupted: a signal leaves the output as it was.
func TestInterrupted(t *testing.T) {
	out := filepath.Join(t.TempDir(), "image.tar")
	writeProgram(t, out, []byte("before"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := writeFile(ctx, out, []file{{"a", []byte("a")}}, time.Unix(0, 0)); !errors.Is(err, context.Canceled) {
		t.Errorf("writeFile() = %v; want canceled", err)
	}
	unchanged(t, "interrupted", out)
}
