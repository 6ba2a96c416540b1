#!/bin/sh
# Puts into a folder what a Go client of the server is compiled with: go.mod and go.sum of gRPC, and the generators.
set -eu

mkdir -p "$1"
cd "$1"
export GOBIN="$PWD/bin" GOFLAGS=-mod=mod
go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.7
go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1
printf 'module example\n\ngo 1.23\n\nrequire google.golang.org/grpc v1.72.0\n' > go.mod
# What generated code imports, compiled once.
printf 'package main\n\nimport (\n\t_ "google.golang.org/genproto/googleapis/api/annotations"\n\t_ "google.golang.org/grpc"\n)\n\nfunc main() {}\n' > main.go
go build -o bin/empty .
rm main.go
touch ready
