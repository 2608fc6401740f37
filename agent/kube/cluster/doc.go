// Package cluster watches the pods of one node in the API server and puts the facts about
// them into a [kube.Feed]. It uses client-go's rest and cache.Reflector with a scheme of its
// own, because the generated clientset and the informers add 50 MB to the binary.
// cmd/evictd does not link it.
//
// [Watch] returns only when its context ends. Each failure is one line with the file, the
// cause and the remedy. The line is logged once and sent to evictd. Watch tries again with a
// back-off of 0.8 s to 30 s with jitter (client-go's reflector). evictd keeps its facts
// during that time.
//
// Credentials may change at any time: client-go reads a token file again every minute and
// after a 401, and client certificates when they change. After an error that only new
// credentials can end, Watch reads the whole configuration again, with the CA: a kubeconfig
// can contain credentials itself.
//
// Tenants decide how large pods are, up to 1.5 MB. If the API server sends the list as a
// watch, evictd-kube decodes one pod at a time and keeps only its facts. Otherwise it needs
// about 300 MB for a list of 100 pods of 1 MB, once.
//
// Watch reads the node before it lists the pods. With a wrong node name the list would be
// empty instead of an error, and evictd would regard all pods as deleted.
package cluster
