package node

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	random "math/rand/v2"
	"runtime"
)

// An archive writes its content, the same bytes on each call. Large content is streamed, never in memory as a whole.
type archive func(io.Writer) error

// imageArchive returns a docker-archive of two images that share one layer with the executable: a tar with
// manifest.json, a configuration per image, and the layer, which is a tar too.
func imageArchive(hog []byte) (archive, error) {
	layer := archiveOf(
		entry{name: "hog", mode: 0o755, size: int64(len(hog)), write: contentOf(hog)},
		entry{name: "tmp/", mode: 0o1777},
	)
	return imagesOf(layer, image{PauseImage, []string{"/hog", "pause"}}, image{HogImage, []string{"/hog"}})
}

// dataArchive returns an image with one file of random content, which is neither compressible nor shared with another
// image.
func dataArchive(tag string, size int64) (archive, error) {
	var seed [32]byte
	_, _ = rand.Read(seed[:]) // never fails
	data := func(w io.Writer) error {
		_, err := io.CopyN(w, random.NewChaCha8(seed), size)
		return err
	}
	return imagesOf(archiveOf(entry{name: "data", mode: 0o644, size: size, write: data}), image{tag: tag})
}

type image struct {
	tag        string
	entrypoint []string
}

func imagesOf(layer archive, images ...image) (archive, error) {
	type manifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	const layerName = "layer.tar"
	measured := measure{Hash: sha256.New()}
	if err := layer(&measured); err != nil {
		return nil, err
	}
	diff := "sha256:" + hex.EncodeToString(measured.Sum(nil))
	entries := []entry{{name: layerName, mode: 0o644, size: measured.size, write: layer}}
	var manifests []manifest
	for _, image := range images {
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH,
			"os":           "linux",
			"config":       map[string]any{"Entrypoint": image.entrypoint},
			"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{diff}},
		})
		if err != nil {
			return nil, fmt.Errorf("write image: %w", err)
		}
		sum := sha256.Sum256(config)
		name := hex.EncodeToString(sum[:]) + ".json"
		entries = append(entries, entry{name: name, mode: 0o644, size: int64(len(config)), write: contentOf(config)})
		manifests = append(manifests, manifest{name, []string{image.tag}, []string{layerName}})
	}
	b, err := json.Marshal(manifests)
	if err != nil {
		return nil, fmt.Errorf("write image: %w", err)
	}
	return archiveOf(append(entries, entry{name: "manifest.json", mode: 0o644, size: int64(len(b)), write: contentOf(b)})...), nil
}

// measure is a writer that computes the size and the digest.
type measure struct {
	hash.Hash
	size int64
}

func (m *measure) Write(b []byte) (int, error) {
	m.size += int64(len(b))
	return m.Hash.Write(b)
}

type entry struct {
	name  string // a directory's ends in a slash
	mode  int64
	size  int64
	write func(io.Writer) error // nil for a directory
}

func contentOf(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := bytes.NewReader(data).WriteTo(w)
		return err
	}
}

// archiveOf returns a tar of the entries.
func archiveOf(entries ...entry) archive {
	return func(to io.Writer) error {
		w := tar.NewWriter(to)
		for _, e := range entries {
			h := &tar.Header{Name: e.name, Mode: e.mode, Size: e.size, Typeflag: tar.TypeReg}
			if e.write == nil {
				h.Typeflag = tar.TypeDir
			}
			if err := w.WriteHeader(h); err != nil {
				return fmt.Errorf("write image: %w", err)
			}
			if e.write == nil {
				continue
			}
			if err := e.write(w); err != nil {
				return fmt.Errorf("write image: %w", err)
			}
		}
		if err := w.Close(); err != nil {
			return fmt.Errorf("write image: %w", err)
		}
		return nil
	}
}
