package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"time"
)

// name is the image's name without a registry. A pod that names the image evictd:VERSION gets docker.io/library/ as the
// registry (github.com/distribution/reference), so ctr has to store it by that name.
const (
	name     = "evictd"
	fullName = "docker.io/library/" + name
)

// options determine the image.
type options struct {
	version, revision string
	created           time.Time
	platforms         []platform
}

// platform is an architecture, and the directory of its programs.
type platform struct{ arch, dir string }

// The media types of the OCI image specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor refers to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *ociPlatform      `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type ociPlatform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// index is an image index.
type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// manifest is an image manifest.
type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations"`
}

// imageConfig is an image configuration.
type imageConfig struct {
	Created      time.Time       `json:"created"`
	Architecture string          `json:"architecture"`
	OS           string          `json:"os"`
	Config       containerConfig `json:"config"`
	RootFS       rootFS          `json:"rootfs"`
	History      []history       `json:"history"`
}

type containerConfig struct {
	Env    []string          `json:"Env"`
	Cmd    []string          `json:"Cmd"`
	Labels map[string]string `json:"Labels"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// dockerImage is an image in manifest.json, which docker load reads.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// layout collects the files of an OCI image layout.
type layout struct {
	options
	files []file
}

type file struct {
	name    string
	content []byte
}

// build returns the files of the image. A time and an order that depend on anything but the options would change the bytes.
func build(o options) ([]file, error) {
	l := &layout{options: o}
	var manifests []descriptor
	var images []dockerImage
	for _, p := range o.platforms {
		d, image, err := l.addPlatform(p)
		if err != nil {
			return nil, err
		}
		manifests, images = append(manifests, d), append(images, image)
	}
	top := manifests[0]
	if len(manifests) > 1 {
		top = l.addJSON(typeIndex, index{2, typeIndex, manifests})
	}
	// containerd takes the name from the first annotation, skopeo from the second.
	top.Annotations = map[string]string{"io.containerd.image.name": fullName + ":" + o.version, "org.opencontainers.image.ref.name": o.version}
	return append([]file{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", encode(index{2, typeIndex, []descriptor{top}})},
		{"manifest.json", encode(images)},
	}, l.files...), nil
}

// addPlatform adds the blobs of one architecture, and returns the descriptor of its manifest.
func (l *layout) addPlatform(p platform) (descriptor, dockerImage, error) {
	var packed bytes.Buffer
	diff := sha256.New()
	gz := gzip.NewWriter(&packed)
	if err := l.writeLayer(io.MultiWriter(gz, diff), p); err != nil {
		return descriptor{}, dockerImage{}, err
	}
	if err := gz.Close(); err != nil {
		return descriptor{}, dockerImage{}, err
	}
	layer := l.add(typeLayer, packed.Bytes())
	config := l.addJSON(typeConfig, imageConfig{
		Created: l.created, Architecture: p.arch, OS: "linux",
		Config:  containerConfig{[]string{"PATH=/usr/bin"}, []string{"/usr/bin/evictd"}, l.labels()},
		RootFS:  rootFS{"layers", []string{digest(diff.Sum(nil))}},
		History: []history{{l.created, "deploy/image"}},
	})
	d := l.addJSON(typeManifest, manifest{2, typeManifest, config, []descriptor{layer}, l.labels()})
	d.Platform = &ociPlatform{p.arch, "linux"}
	repoTag := name + ":" + l.version
	if len(l.platforms) > 1 { // docker load would keep the last of several images with one tag
		repoTag += "-" + p.arch
	}
	return d, dockerImage{blobPath(config), []string{repoTag}, []string{blobPath(layer)}}, nil
}

// labels are the annotations of the OCI image specification.
func (l *layout) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":         "evictd",
		"org.opencontainers.image.description":   "Evicts pods of a node under resource pressure",
		"org.opencontainers.image.version":       l.version,
		"org.opencontainers.image.created":       l.created.Format(time.RFC3339),
		"org.opencontainers.image.source":        "https://github.com/evictd/evictd",
		"org.opencontainers.image.documentation": "https://github.com/evictd/evictd/blob/main/deploy/README.md",
		"org.opencontainers.image.licenses":      "Apache-2.0",
	}
	if l.revision != "" {
		labels["org.opencontainers.image.revision"] = l.revision
	}
	return labels
}

// writeLayer writes the files of a container as a tar. There is nothing but the programs: they are static, and
// evictd-kube gets its CA from the pod's service account or the kubeconfig.
func (l *layout) writeLayer(to io.Writer, p platform) error {
	w := tar.NewWriter(to)
	header := tar.Header{ModTime: l.created, Mode: 0o755, Format: tar.FormatUSTAR}
	for _, dir := range []string{"usr/", "usr/bin/"} {
		h := header
		h.Typeflag, h.Name = tar.TypeDir, dir
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
	}
	for _, program := range programs {
		content, err := readProgram(filepath.Join(p.dir, program), p.arch)
		if err != nil {
			return err
		}
		h := header
		h.Typeflag, h.Name, h.Size = tar.TypeReg, "usr/bin/"+program, int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	return w.Close()
}

// add adds a blob.
func (l *layout) add(mediaType string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	d := descriptor{MediaType: mediaType, Digest: digest(sum[:]), Size: len(content)}
	l.files = append(l.files, file{blobPath(d), content})
	return d
}

func (l *layout) addJSON(mediaType string, v any) descriptor { return l.add(mediaType, encode(v)) }

// encode encodes a value of this file. Maps are sorted by key (encoding/json).
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // the types have no cycles, channels or functions
	}
	return b
}

func digest(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

func blobPath(d descriptor) string { return "blobs/sha256/" + d.Digest[len("sha256:"):] }
