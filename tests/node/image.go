package node

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
)

// imageArchive packs an executable as two images that share one layer, in the format of docker-archive: a tar
// with manifest.json, a configuration per image, and the layer, itself a tar.
func imageArchive(hog []byte) ([]byte, error) {
	layer, err := archive(
		entry{name: "hog", mode: 0o755, data: hog},
		entry{name: "tmp/", mode: 0o1777},
	)
	if err != nil {
		return nil, err
	}
	return imagesOf(layer, image{PauseImage, []string{"/hog", "pause"}}, image{HogImage, []string{"/hog"}})
}

// dataArchive is an image with one file, whose content no filesystem makes smaller and no other image has.
func dataArchive(tag string, size int64) ([]byte, error) {
	data := make([]byte, size)
	_, _ = rand.Read(data) // never fails
	layer, err := archive(entry{name: "data", mode: 0o644, data: data})
	if err != nil {
		return nil, err
	}
	return imagesOf(layer, image{tag: tag})
}

type image struct {
	tag        string
	entrypoint []string
}

func imagesOf(layer []byte, images ...image) ([]byte, error) {
	type manifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	const layerName = "layer.tar"
	entries := []entry{{name: layerName, mode: 0o644, data: layer}}
	var manifests []manifest
	for _, image := range images {
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH,
			"os":           "linux",
			"config":       map[string]any{"Entrypoint": image.entrypoint},
			"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
		})
		if err != nil {
			return nil, fmt.Errorf("write image: %w", err)
		}
		name := digest(config) + ".json"
		entries = append(entries, entry{name: name, mode: 0o644, data: config})
		manifests = append(manifests, manifest{name, []string{image.tag}, []string{layerName}})
	}
	b, err := json.Marshal(manifests)
	if err != nil {
		return nil, fmt.Errorf("write image: %w", err)
	}
	return archive(append(entries, entry{name: "manifest.json", mode: 0o644, data: b})...)
}

type entry struct {
	name string // a directory's ends in a slash
	mode int64
	data []byte
}

func archive(entries ...entry) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), Typeflag: tar.TypeReg}
		if e.data == nil {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("write image: %w", err)
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, fmt.Errorf("write image: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write image: %w", err)
	}
	return buf.Bytes(), nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
